from .samplers import (
    Antithetic as Antithetic,
    Draws as Draws,
    Fixed as Fixed,
    Grid as Grid,
    Latin as Latin,
    Sobol as Sobol,
    Uniform as Uniform,
    stream as stream,
)
