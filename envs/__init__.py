"""Environments behind one protocol (see ``shoal.envs.base``)."""

from shoal.envs import jaxmarl as _jaxmarl
from shoal.envs import matrix as _matrix
from shoal.envs import mpe as _mpe
from shoal.envs import smax as _smax
from shoal.envs import vmas as _vmas
from shoal.envs.base import Continuous, Discrete, Env, TimeStep
from shoal.envs.host import pettingzoo as _pettingzoo
from shoal.envs.registry import canonical, make, register
from shoal.envs.registry import list_envs as list
from shoal.errors import UserError

__all__ = ["Continuous", "Discrete", "Env", "TimeStep", "UserError", "canonical", "list", "make", "register"]

_jaxmarl.register_all()
_matrix.register_all()
_mpe.register_all()
_pettingzoo.register_all()
_smax.register_all()
_vmas.register_all()
