"""Which lane does what in the next tick. Pure: no clock, no I/O."""
