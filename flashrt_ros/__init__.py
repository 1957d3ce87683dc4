"""flashrt_ros: a robot brain whose whole state is one object that can be frozen and restored."""
