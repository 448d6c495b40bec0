"""The web listener's token: minted at every start, left where only the daemon's user can read it."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from superfluid.config import Secret
from superfluid.errors import StoreError

TOKEN_FILE = "web-token"
_TOKEN_BYTES = 32


def mint_token() -> Secret:
    """64 hexadecimal digits that nobody can guess."""
    return Secret(secrets.token_hex(_TOKEN_BYTES))


def write_token(sessions_directory: Path, token: Secret) -> Path:
    """Puts the token into the directory's ``web-token`` file, mode 0600, in one step; a reader sees the old one or the
    new one. To be done before the port opens. Raises StoreError."""
    path = sessions_directory / TOKEN_FILE
    # A new file, so that neither the old one's mode nor a link in its place matters.
    draft = sessions_directory / f".{TOKEN_FILE}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        sessions_directory.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "w") as file:
                # The process's mask can only take rights away, from the owner too.
                os.fchmod(handle, 0o600)
                file.write(token.reveal())
            draft.replace(path)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
    except OSError as error:
        raise StoreError(f"cannot write the web token to {path}: {error.strerror}") from error
    return path
