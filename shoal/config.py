import dataclasses
from flax import struct
def setting(default, low=None, high=None, choices=()):
    return dataclasses.field(default=default, metadata=dict(low=low, high=high, choices=choices))
def hyper(default, low=None, high=None):
    return struct.field(default=default, metadata=dict(low=low, high=high))
def main(*a, **k): pass
