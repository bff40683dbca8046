"""Attacks with webhook URLs that lead to Fairlot's own machine, to its network, or to its cloud's metadata service."""

from __future__ import annotations

from tests.attack.attacks import Target, attack

INSIDE = (
    "https://127.0.0.1/", "https://localhost/", "https://[::1]/", "https://10.0.0.1/", "https://169.254.169.254/latest/",
    "https://192.0.0.192/", "https://168.63.129.16/", "https://[fd00:ec2::254]/", "https://[fec0::1]/",
    "https://[::127.0.0.1]/", "https://[::ffff:0:7f00:1]/", "https://[::ffff:127.0.0.1]/", "https://[64:ff9b:1::7f00:1]/",
    "https://[64:ff9b::a9fe:a9fe]/", "https://[2002:7f00:1::]/", "https://0x7f.1/", "https://2130706433/",
    "https://0177.0.0.1/", "https://127.1/", "https://127.0.0.1./", "https://a b/", "https://a@127.0.0.1/",
    "https://example.org\\@127.0.0.1/", "https://１２７.0.0.1/", "https://[fe80::1%25lo]/", "http://example.org/",
    "https://example.org:0/", "https://intranet/", "https://metadata.google.internal/", "file:///etc/passwd",
)  # fmt: skip


@attack("an admin's budget calls an address inside by a webhook")
def budgets(target: Target) -> None:
    ada = target.person("ada")
    team = target.person("bob").get("/api/v1/me").json()["teams"][0]["team"]
    saved = []
    for url in INSIDE:
        answer = ada.http.put(
            "/api/v1/budgets",
            json={"team": team, "amount": "1000000", "webhook_url": url},
            headers={"Origin": target.url, "X-CSRFToken": ada.csrf()},
        )
        told = answer.json()
        if answer.status_code < 400 or "Accepted" not in told.get("problems", {}).get("webhook_url", ""):
            saved.append(f"{url} ({answer.status_code})")
    assert saved == [], f"saved: {saved}"
