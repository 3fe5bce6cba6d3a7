"""A world of many wishes: word problems whose answers vary along eighteen independent axes, and people with wishes about them."""
