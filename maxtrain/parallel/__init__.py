"""Devices, processes, mesh, sharding rules, and the places where ranks exchange rows."""
