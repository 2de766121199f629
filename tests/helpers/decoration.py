"""A ResNet with trained-looking batch norms, and the gradient of an encoder."""

import torch
import torchvision
from torch import nn


def with_statistics(module):
    """Random weights, and running statistics other than the initial ones of a batch norm."""
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.running_mean.normal_(0, 0.2)
            m.running_var.uniform_(0.5, 2)
            m.weight.data.uniform_(0.5, 1.5)
            m.bias.data.normal_(0, 0.2)
    return module.eval().requires_grad_(False)


def resnet():
    return with_statistics(torchvision.models.resnet18(num_classes=32))


def with_gradient(encoder, images):
    """(embeddings, gradient of a fixed loss)."""
    leaf = images.clone().requires_grad_()
    features = encoder(leaf)
    weights = torch.linspace(-1, 1, features[0].numel(), dtype=features.dtype).view_as(features[0])
    (gradient,) = torch.autograd.grad((features * weights).sum(), leaf)
    return features.detach(), gradient
