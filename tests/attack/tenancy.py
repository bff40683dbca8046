from tests.attack.attacks import Target, attack


@attack("a member reads the audit trail")
def audit_trail(target: Target) -> None:
    answer = target.person("bob").get("/admin/audit/")
    assert answer.status_code == 404, f"/admin/audit/ answered {answer.status_code} to a member"
