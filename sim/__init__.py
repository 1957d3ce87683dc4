"""flashrt_sim: simulated robots with exact get and set of their whole state, and rollouts.

Importing it names the environments to gymnasium: `gymnasium.make('flashrt/Drawer-v0')`.
"""

from flashrt_sim.registration import register

register()
