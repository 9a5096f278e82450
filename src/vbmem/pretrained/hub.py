"""Models on the Hugging Face Hub, as the same files that are on disk (`pip install vbmem[hub]`)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vbmem.errors import ModelError
from vbmem.models.card import HUB
from vbmem.models.directory import DECODER, FILES, REFERENCE, SETTINGS, WEIGHTS, read_settings


def download(source: str) -> Path:
    """Fetch `hf://user/name` or `hf://user/name@revision`; its directory in the Hub's cache."""
    repo, _, revision = source.removeprefix(HUB).partition("@")
    with _hub(source, repo):
        from huggingface_hub import snapshot_download

        directory = Path(snapshot_download(repo, revision=revision or None, allow_patterns=SETTINGS))
        # Before the weights, which are large in other libraries' repositories.
        try:
            read_settings(directory)
        except ModelError as error:
            raise ModelError(f"{source} cannot be loaded: {error}") from error
        return Path(snapshot_download(repo, revision=directory.name, allow_patterns=[WEIGHTS, REFERENCE, DECODER]))


def upload(directory: Path, repo: str, private: bool, token: str | None = None) -> str:
    """Push a model directory in one commit; the address of its page."""
    with _hub(repo, repo):
        from huggingface_hub import CommitOperationAdd, HfApi

        api = HfApi(token=token)
        page = api.create_repo(repo, private=private, exist_ok=True)
        if private and not api.model_info(repo).private:
            raise ModelError(f"{repo} is on the Hub already, and public; make it private there or choose another name")
        # One by one: whatever else lies in the directory stays at home.
        names = [name for name in FILES if (directory / name).is_file()]
        files = [CommitOperationAdd(name, directory / name) for name in names]
        api.create_commit(repo, files, commit_message="Save a vbmem model")
        return str(page)


@contextmanager
def _hub(given: str, repo: str) -> Iterator[None]:
    """Whatever goes wrong between here and the Hub, in one sentence."""
    if not re.fullmatch(r"[^/@\s]+/[^/@\s]+", repo):
        raise ModelError(f"{given!r} is not a model on the Hub; expected user/name, and {HUB}user/name to load it")
    try:
        from huggingface_hub import errors
    except ImportError as error:
        raise ModelError(
            "models on the Hub need huggingface_hub, which is not installed; run: pip install 'vbmem[hub]'"
        ) from error
    login = "log in with `hf auth login`"
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # of the HTTP library beneath as well, which is another from release to release
        match error:
            case errors.RevisionNotFoundError():
                reason = "the Hub has no such revision of it; check what follows the @"
            case errors.RepositoryNotFoundError():
                reason = f"the Hub has no such model that you may see; check the name, or {login}"
            case errors.LocalEntryNotFoundError():
                reason = "the Hub cannot be reached, and it was not downloaded before; check the connection"
            case errors.HfHubHTTPError(response=response) if response.status_code in (401, 403):
                reason = f"the Hub does not let you; {login}, or give a token that may write"
            case _:
                reason = f"the Hub gave an error ({' '.join(str(error).split())})"
        raise ModelError(f"{given}: {reason}") from error
