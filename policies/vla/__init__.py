"""Vision-language-action policies from lerobot's checkpoint folders: π0, π0.5 and SmolVLA."""
