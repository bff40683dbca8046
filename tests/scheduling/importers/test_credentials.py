"""What counts as a credential in names, values and scripts, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.importers.credentials import is_confidential
from scheduling.importers.credentials_in_scripts import credential_in_script
from scheduling.importers.registry import convert

VALUE = "Zx9hunter2"
# Scripts with {} in place of a credential.
SCRIPTS = [
    "curl -H 'Authorization: Bearer {}' https://example.org/x", 'curl --header "X-Api-Key: {}" https://example.org',
    "curl -H 'PRIVATE-TOKEN: {}' https://example.org", "curl -su me:{} https://example.org",
    "curl --user=me:{} https://example.org", "curl https://example.org \\\n  -u me:{}",
    "bash -c \"curl -u 'me:{}' https://example.org\"", "sshpass -p {} ssh host", "sshpass -p{} ssh host",
    "docker login -u me -p {} example.org", "podman login --password={} example.org", "helm registry login -u a -p {}",
    "echo {} | docker login -u me --password-stdin", "mysql -uroot -p{} db", "cd /x && /usr/bin/mysqldump -p{} db > a",
    "PGPASSWORD={} psql -h db", "export MYSQL_PWD={}; mysql", "env GITHUB_PAT={} git fetch", "redis-cli -a {} ping",
    "run --password {}", "run --api-key {}", "python x.py --db.password={}", "psql 'dbname=a password={}'",
    "lftp -u me,{} ftp.example.org", "echo machine example.org login me password {} > ~/.netrc",
    "git clone https://me:{}@example.org/x.git", "echo '{{\"auths\": {{\"x\": {{\"auth\": \"{}\"}}}}}}' > config.json",
    "python -c 'login(token=\"{}\")'", "curl -d '{{\"password\": \"{}\"}}' https://example.org",
    "python -c 'requests.get(u, headers={{\"Authorization\": \"Bearer {}\"}})'", "wget --http-password={} https://x.org",
    "curl -b 'x' -H 'Cookie: sid={}' https://example.org", "jupyter lab --NotebookApp.token={}",
    "mongosh -u me -p {} db", "http -a me:{} example.org", "sudo -E sshpass -v -p {} scp a b:",
]  # fmt: skip
REFERENCES = ["$SECRET", "${SECRET}", "$(cat /run/secrets/x)", "`cat x`", "${SECRET:-}", "<your-token>", "$1"]
HARMLESS_SCRIPTS = [
    "python x.py --num-tokens 4096 --max_tokens=512", "python x.py --pad-token '[PAD]' --eos_token=</s>",
    "python x.py --placeholder_token '<cat>' --initializer_token=toy", "python x.py --sort-key name --primary-key id",
    "mysql -h db -P 3306 -u root", "mysqld --port=3306 -p3306", "docker run -p 8080:80 x", "ssh -p 2222 host",
    "curl -u \"$U:$P\" https://x.org", "curl -sSL -o x.tar https://example.org/u/x", "curl -X POST -d '{\"a\": 1}' x",
    "python -c \"login(token=os.environ['HF_TOKEN'])\"", "python -c 'f(api_key=api_key, password=args.password)'",
    "export OPENAI_API_KEY=EMPTY", "vllm serve m --api-key EMPTY", "python x.py --author me --authors-file a.txt",
    "cd $PWD && OLDPWD=/x PWD=/y run", "export TOKENIZERS_PARALLELISM=false", "export AUTH=true USE_AUTH=1",
    "python x.py --token-type bearer --password-file /run/secrets/p", "python train.py --key-metric loss",
    "torchrun --rdzv_id 123 --rdzv_conf join_timeout=60 x.py", "echo 'Authorization: Bearer token required'",
    "python -c 'h={\"Authorization\": f\"Bearer {token}\"}'", "openssl req -passout file:x", "mkdir -p /a/mysql -p",
    "curl -H 'Content-Type: application/json' x", "curl -H \"Authorization: Bearer $T\" x", "GITHUB_PAT=$PAT run",
    "grep -p pattern file | docker ps", "python x.py --patience 5 --path /data --compass north BYPASS=1",
    "docker login --password-stdin < /run/secrets/p", "python x.py --tokenizer-name bert-base-uncased-2024a",
    "accelerate launch x.py --train_text_encoder_ti --token_abstraction TOK", "python x.py token=1 secret_sauce=none",
]  # fmt: skip
VARIABLES = [
    ("PGPASSWORD", "x1"), ("MYSQL_PWD", "hunter"), ("MYPWD", "hunter"), ("GITHUB_PAT", "Zx9hunter2Zx9hunter2"),
    ("AZURE_DEVOPS_EXT_PAT", "q7" * 26), ("DOCKER_AUTH_CONFIG", '{"auths": {"r": {"auth": "bWU6cHc="}}}'),
    ("CONFIG", '{"auths":{"r":{"auth":"bWU6cHc="}}}'), ("NETRC", "machine x login me password y"),
    ("GOOGLE_APPLICATION_CREDENTIALS_JSON", '{"private_key": "abc"}'), ("GCP", '{"private_key": "abcdefgh"}'),
    ("COOKIE", "sid=abc"), ("SESSION_COOKIE", "Zx9hunter2"), ("AUTH", "Basic bWU6cHdwdw=="), ("PROXY_AUTH", "me:pw"),
    ("SENTRY_DSN", "https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/1"),
    ("HOOK", "https://hooks.slack.com/services/T00000000/B00000000/abcdefghijkl"), ("DB_PASSWORD", "12345678"),
    ("NOTIFY", "https://discord.com/api/webhooks/123456789/abcdefghij"), ("apiKey", "abc"), ("clientSecret", "abc"),
    ("HF_TOKEN", "abc"), ("HFTOKEN", "abc"), ("DBPASS", "abc"), ("RC", "machine x login me password hunter2"),
    ("AUTHORIZATION", "Bearer abcDEF123"), ("X", "dapi" + "0123456789abcdef" * 2),
]  # fmt: skip
HARMLESS_VARIABLES = [
    ("PWD", "/work"), ("OLDPWD", "/work"), ("INIT_PWD", "/work"), ("SRC_PWD", "/a"), ("TOKENIZERS_PARALLELISM", "no"),
    ("AUTHOR", "Alice"), ("AUTHORS", "a,b"), ("AUTH", "true"), ("AUTH_TYPE", "basic"), ("CLOUD_AUTH", "iam"),
    ("SASL_AUTH", "plain"), ("FILE_PAT", "*.py"), ("PATH", "/usr/bin"), ("PATTERN", "x"), ("COOKIE_DOMAIN", "x.org"),
    ("USE_COOKIES", "1"), ("MAX_TOKENS", "5"), ("NUM_TOKEN", "5"), ("PAD_TOKEN", "[PAD]"), ("NETRC", "/root/.netrc"),
    ("BYPASS", "1"), ("COMPASS", "north"), ("KEYS", "a"), ("MONKEY", "a"), ("SORT_KEY", "name"), ("DSN", "local"),
    ("SENTRY_DSN", ""), ("HF_TOKEN_PATH", "/x"), ("PASSWORD_FILE", "/run/x"), ("CONFIG", '{"pad_token": "[PAD]"}'),
    ("URL", "https://hooks.slack.com/"), ("REPO", "https://git@example.org/x"), ("JSON", '{"token": "x"}'),
    ("HOST", "user:8080"), ("MODE", "Basic training"), ("EXPAT", "1"), ("COOKIE", "true"),
]  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_credential_in_a_script_is_found_and_a_reference_is_none(script: str) -> None:
    assert credential_in_script(script.format(VALUE))
    assert credential_in_script(f"set -e\necho start\n{script.format(VALUE)} || exit 1\n")
    for reference in REFERENCES:
        assert credential_in_script(script.format(reference)) == "", reference


@pytest.mark.parametrize("script", HARMLESS_SCRIPTS)
def test_a_script_without_credentials_is_accepted(script: str) -> None:
    assert credential_in_script(script) == ""


@given(
    st.lists(st.sampled_from(HARMLESS_SCRIPTS), min_size=2, max_size=4),
    st.sampled_from([" && ", "\n", " | ", "; "]),
)
def test_scripts_without_credentials_are_accepted_together(scripts: list[str], between: str) -> None:
    assert credential_in_script(between.join(scripts)) == ""


@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_a_confidential_variable_becomes_a_reference_in_every_form(name: str, value: str) -> None:
    assert is_confidential(name, value)
    quoted = value.replace('"', '\\"')
    text = f'type: task\ncommands: [run]\nresources: {{gpu: 1}}\nenv: {{{name}: "{quoted}"}}\n'
    (work,) = convert(text).works
    assert ("variables" in work.spec, list(work.spec["secrets"])) == (False, [name])


@pytest.mark.parametrize(("name", "value"), HARMLESS_VARIABLES)
def test_a_harmless_variable_keeps_its_value(name: str, value: str) -> None:
    assert not is_confidential(name, value)


def test_the_secret_of_an_address_is_nowhere_in_the_result() -> None:
    for at in (
        "https://hooks.slack.com/services/T00000000/B00000000/abcdefghijkl",
        "https://a1b2c3d4e5f6a7b8c9d0@x.io/1",
    ):
        found = convert(f"name: a\nrun: post {at}\nresources: {{accelerators: '{at}'}}\n")
        assert found.refused
        assert at[30:40] not in str(found)


@pytest.mark.parametrize(
    "part",
    [
        "curl -u a:",
        "-p",
        "mysql ",
        '"a": "',
        "Cookie: ",
        "echo a |",
        "machine a ",
        "https://",
        "a.",
        "docker login ",
    ],
)
def test_no_script_takes_long(part: str) -> None:
    credential_in_script(part * (120_000 // len(part)))
