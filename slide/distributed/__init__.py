"""Training on several processes: rows of features and labels are shared out among them."""

from slide.distributed.group import Group as Group
