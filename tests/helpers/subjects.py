"""The encoder of a configuration, from its nodes alone."""

from attacks.schema.encoder import DefenceConfig
from attacks.schema.run import Run
from attacks.schema.task import RetrievalConfig
from attacks.study.encoder import subject_encoder


def encoder_of(node, device, defence=None, module=None):
    """The encoder of a `node`, behind a `defence`, for a retrieval; a `module` replaces it."""
    defence = DefenceConfig("none") if defence is None else defence
    return subject_encoder(Run(encoder=node, defence=defence, task=RetrievalConfig()), device, module)
