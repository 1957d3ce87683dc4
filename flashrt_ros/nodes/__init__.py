"""The robot's system on ROS 2: thin nodes around `control`, and what starts them."""
