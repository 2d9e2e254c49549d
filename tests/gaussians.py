"""Every kind of Gaussian that components may be, for several tests."""

from mixtura.densities import Diagonal, Full, LowRank, Spherical

GAUSSIANS = {
    "spherical": Spherical(),
    "diag": Diagonal(),
    "full": Full(),
    "low_rank": LowRank(),
    "precision": LowRank(parameterization="precision"),
}
