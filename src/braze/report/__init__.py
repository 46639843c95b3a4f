"""What people read: logs, explain, the catalogue of graph breaks."""
