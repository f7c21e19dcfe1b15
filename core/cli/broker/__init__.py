"""`klamm broker`: brokers in the foreground, in the background, several of one host, under a service manager."""
