"""Written anew for a wheel."""
__version__ = "0.1.0"
LINKED: tuple[str, ...] = ()  # libraries inside of libvitrum_c
