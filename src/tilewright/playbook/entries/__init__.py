"""The entries of the playbook, one in each file: the changes that `tilewright optimize` tries."""
