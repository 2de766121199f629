from .bounded import interval as interval, rate as rate, missable_share as missable_share
from .bounded import smoothed_floor as smoothed_floor
from .pairs import sign_flips as sign_flips, least_p as least_p, fewest_clusters as fewest_clusters
