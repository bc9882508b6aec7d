"""Plans in the formats of other trainers: patterns of tensor names with their settings."""

from orderone.planning.exports.export import Export, export

__all__ = ["Export", "export"]
