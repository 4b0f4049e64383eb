"""Figures as Vega-Lite specifications: drawn in the page, and as SVG or PNG on request.

A figure is a plain dictionary (https://vega.github.io/vega-lite/, version 6) with its data in it,
a title, and a description that says in words what it shows.
"""
