"""The export file: records of a store carried from one machine to another, sealed, and believed as far as checked."""
