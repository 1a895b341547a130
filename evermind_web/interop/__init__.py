"""Exchange with other programs: export, import, model packages, deltas. The public names are in `evermind_web`."""
