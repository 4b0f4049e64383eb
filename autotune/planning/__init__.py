"""Capacity planning: many models on many clusters, kept from night to night."""
