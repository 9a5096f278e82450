"""As much of the Hugging Face Hub as huggingface_hub asks for, on this machine: repositories in a dictionary."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

TOKEN = "hf_may_write"


@dataclass
class Repository:
    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # files by path, the newest commit last

    def commit(self, files: dict[str, bytes]) -> str:
        before = list(self.commits.values())[-1:] or [{}]
        name = hashlib.sha1(str(len(self.commits)).encode()).hexdigest()
        self.commits[name] = before[0] | files
        return name

    def find(self, revision: str) -> str | None:
        return list(self.commits)[-1] if revision == "main" else revision if revision in self.commits else None


class FakeHub:
    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.yaml_errors: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                hub.requests.append(f"{self.command} {self.path}")
                status, headers, content = hub.respond(self.command, unquote(self.path), body, self.headers)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = do_POST = answer

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo: str) -> dict[str, bytes]:
        return list(self.repositories[repo].commits.values())[-1]

    def respond(self, method: str, path: str, body: bytes, headers) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content."""
        allowed = headers.get("Authorization") == f"Bearer {TOKEN}"
        parts = path.partition("?")[0].strip("/").split("/")
        match method, parts:
            case "POST", ["api", "validate-yaml"]:
                errors = [{"message": text} for text in self.yaml_errors]
                return said({"errors": errors, "warnings": []}, 400 if errors else 200)
            case "POST", ["api", "repos", "create"] if not allowed:
                return said({"error": "Invalid username or password."}, 401)
            case "POST", ["api", "repos", "create"]:
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                new = name not in self.repositories
                if new:
                    self.repositories[name] = Repository(asked.get("visibility") == "private")
                return said({"url": f"{self.endpoint}/{name}"}, 200 if new else 409)
            case _, ["api", "models", user, name, *rest]:
                found = self.repositories.get(f"{user}/{name}")
                if found is None or (found.private and not allowed):
                    return said({}, 401, {"X-Error-Code": "RepoNotFound"})
                return self.of_repository(f"{user}/{name}", found, rest, body)
            case _, [user, name, "resolve", revision, file]:
                found = self.repositories[f"{user}/{name}"]
                commit = found.find(revision)
                assert commit is not None
                content = found.commits[commit].get(file)
                if content is None:
                    return said({}, 404, {"X-Error-Code": "EntryNotFound"})
                etag = f'"{hashlib.sha256(content).hexdigest()}"'
                return 200, {"ETag": etag, "X-Repo-Commit": commit}, content
        raise AssertionError(f"the fake Hub does not know {method} {path}")

    def of_repository(self, name: str, found: Repository, rest: list[str], body: bytes):
        match rest:
            case [] | ["revision", _]:
                commit = found.find(rest[1] if rest else "main") if found.commits else None
                if rest and commit is None:
                    return said({}, 404, {"X-Error-Code": "RevisionNotFound"})
                return said({"id": name, "sha": commit, "private": found.private, "siblings": []})
            case ["tree", revision]:
                commit = found.find(revision)
                assert commit is not None
                files = found.commits[commit]
                return said([{"type": "file", "path": p, "size": len(c), "oid": "0" * 40} for p, c in files.items()])
            case ["preupload", "main"]:
                paths = [file["path"] for file in json.loads(body)["files"]]
                return said(
                    {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}
                )
            case ["commit", "main"]:
                lines = map(json.loads, body.splitlines())
                values = [line["value"] for line in lines if line["key"] == "file"]
                files = {value["path"]: base64.b64decode(value["content"]) for value in values}
                commit = found.commit(files)
                return said({"commitUrl": f"{self.endpoint}/{name}/commit/{commit}", "commitOid": commit})
        raise AssertionError(f"the fake Hub does not know {rest} of a model")


def said(
    content: object, status: int = 200, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/json"} | (headers or {}), json.dumps(content).encode()
