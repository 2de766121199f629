"""Reading pixels at points: warps, pyramids, exact edges."""
