"""What must survive a restart: the contract (`base`), and the engines that keep it."""
