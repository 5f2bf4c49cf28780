"""The daemon that packs jobs onto the fleet's GPUs and holds tenants to their quotas."""
