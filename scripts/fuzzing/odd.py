"""Keys and values that somebody may write into a configuration, by mistake or on purpose."""

from __future__ import annotations

_VALUES = """
null ~ true no 0 -1 1 2.5 1e999 .nan .inf -.inf 0x10 0o17 1_000 '' a ä [] {} [[]] [1,2] [2,1] [null] [.nan,1]
8/255 1/0 / a/b/c ??? '???' "a\\nb" "\\u2028" 2001-01-01 12:30:45 all auto another ../../etc/passwd /etc/passwd
https://example.org/x file:///etc/passwd a,b a=b %s {0} <script> *a [/a] camera [camera] case [case] [_self_,case]
${seed} ${evaluate} ${a} ${ ${} ${seed \\${seed} ${.} ${..} ${seed}${seed} x${seed} ${oc.env:HOME} ${now:%Y}
${hydra:job.name} ${oc.create:{}} ${${seed}} ${evaluate.layers} ${encoder} ${transforms.stages} range(1,3)
choice(a,b) glob(*) interval(0,1) int(x) float('1') str([1]) sort(3,2,1) shuffle(1,2)
"""
_KEYS = """
name _target_ _partial_ _args_ _convert_ hydra defaults () a a.b 1 true null ${seed} seed show evaluate stages
value kernel << __class__ _name_ _parent_ ä items keys _metadata
"""
_BLANKS = """
' '|a b|{a: 1}|{? [a] : b}|{<<: {a: 1}}|&a 1|&a [*a]|!!python/object/apply:os.system [id]|!!python/name:os.system x
!!python/tuple [1]|!!binary aGk=|!x 1|!!set {a}|!!timestamp 2001-01-01|!!float x|!!int 1.5|!!str 1
[override /encoder: 1]|[{override /encoder: [a]}]|[{a: {b: c}}]
"""
_LETTERS = ("\u2028", "\u0085", "\u202e", "\U0001f600", "\x00", "\x7f", "\ufeff", "", "a b", "|\n  a", ">-\n  a")
ODD = (*_VALUES.split(), *_BLANKS.strip().replace("\n", "|").split("|"), *_LETTERS, "9" * 400, "9" * 5000)
KEYS = (*_KEYS.split(), "", "a b", "\u2028")
