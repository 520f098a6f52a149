"""Baselines: GPs to compare with a robust one. Each predicts as :class:`rcgp.RCGP` does and has a ``fit``.

GaussianGP          the ordinary GP, by marginal likelihood
StudentTGP          Student-t noise, variational posterior: the paper's t-GP
MixtureGP           inliers and uniform outliers, variational posterior: the paper's m-GP
WinsorizedGP        an ordinary GP on clipped observations
RelevancePursuitGP  BoTorch's robust GP; needs the extra ``rcgp[botorch]``

FilterCentredGP     ST-RCGP's weights, for series; in :mod:`rcgp_paper.baselines.filter_centred`, which imports numba
"""

from rcgp_paper.baselines.gaussian import GaussianGP, RelevancePursuitGP, WinsorizedGP
from rcgp_paper.baselines.mixture import MixtureGP
from rcgp_paper.baselines.student_t import StudentTGP

__all__ = ["GaussianGP", "MixtureGP", "RelevancePursuitGP", "StudentTGP", "WinsorizedGP"]
