"""Mechanisms of the robot loop, without ROS: queue, mailbox, guards, gate, watchdog, episode."""
