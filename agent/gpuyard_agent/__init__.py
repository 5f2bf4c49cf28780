"""The daemon of one Docker host: runs the containers that its node is assigned."""
