"""From configurations to cubins, compiled side by side, and which of them are worth a GPU's time."""
