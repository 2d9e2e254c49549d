"""What has a class log-joint: mixtures, networks, products of columns."""
