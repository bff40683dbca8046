"""Tests of a whole running Fairlot in a real browser."""

from __future__ import annotations

import csv
import os
import re
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.proof.browser import People, Person
from tests.proof.looks import tables_that_are_cut, what_axe_says, what_is_too_wide
from tests.proof.portal import ROOT, RunningPortal
from tests.waiting import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]

STEPS = 200
DIGITS = 'python "$FAIRLOT_EXAMPLES/digits/train.py" --steps {steps} --seconds-per-step 0.1'
SOON = 600_000  # milliseconds to wait for a round and for processes on a busy machine
FINALLY = 600_000


def test_a_user_submits_a_program_watches_it_and_reads_the_bill(people: People) -> None:
    shorten_the_quantum(people.sign_in("ada"))
    rivals = [people.sign_in("charlie"), people.sign_in("dana")]
    bob = people.sign_in("bob")
    job = submit_the_digits(bob.page)
    for rival in rivals:
        for batch in (16, 32, 128):
            command = DIGITS.format(steps=5000) + f" --batch {batch}"
            rival.submit(name=f"digits: batch {batch}", command=command, generations=["V100"])
    expect(chip(bob.page, "Running")).to_be_visible(timeout=SOON)

    bob.page.get_by_role("link", name="Log", exact=True).click()
    lines = log_lines(bob.page)
    expect(bob.page.locator("[data-log-state]")).to_have_text("Live")
    expect(lines.filter(has_text=re.compile(r"^step 5 loss"))).to_have_count(1, timeout=SOON)

    # Bob is entitled to little more than one GPU, which goes to his job with the highest priority.
    first = bob.submit(
        name="digits: goes first", command=DIGITS.format(steps=5000), priority=100, generations=["V100"]
    )
    expect(chip(bob.page, "Suspended")).to_be_visible(timeout=SOON)
    take_the_picture(people)
    bob.post(f"jobs/{first}/cancel")
    expect(lines.filter(has_text=re.compile(r"^stopping as ordered; saved step \d+$"))).not_to_have_count(0)
    resumed = lines.filter(has_text=re.compile(r"^resuming from the checkpoint of step \d+$"))
    expect(resumed).not_to_have_count(0, timeout=SOON)

    expect(bob.page.locator("[data-log-state]")).to_have_text("Complete", timeout=FINALLY)
    expect(chip(bob.page, "Succeeded")).to_be_visible()
    for rival in rivals:
        rival.cancel_all()
    assert lines.all_text_contents() == raw_log(bob.page)
    check_the_training(lines.all_text_contents())
    check_the_history(bob, job)
    check_the_bill(bob, job)
    check_that_others_see_nothing(rivals[0], job)


def test_the_documentation_of_the_api_is_shown_under_the_security_policy(people: People) -> None:
    page = people.sign_in("bob").page
    blocked: list[str] = []
    page.on(
        "console", lambda said: blocked.append(said.text) if "Content Security Policy" in said.text else None
    )
    page.goto("/api/v1/docs")
    operation = page.locator(".opblock-summary-path", has_text=re.compile("^/api/v1/preflight$"))
    expect(page.locator(".opblock-tag").first).to_be_visible(timeout=SOON)
    expect(operation).to_have_count(0)
    page.locator(".operation-filter-input").fill("PREFLIGHT post")
    expect(operation).to_be_visible(timeout=SOON)
    expect(page.locator(".opblock")).to_have_count(1)
    operation.click()
    expect(page.get_by_text("application/problem+json").first).to_be_visible(timeout=SOON)
    assert blocked == []
    assert what_axe_says(page, "color-contrast", "html-has-lang", "landmark-one-main") == []


def test_the_log_survives_a_cut_connection(people: People, portal: RunningPortal) -> None:
    bob = people.sign_in("bob")
    job = bob.submit(name="digits: long", command=DIGITS.format(steps=STEPS), priority=100)
    bob.page.goto(f"/jobs/{job}/log/")
    lines, state = log_lines(bob.page), bob.page.locator("[data-log-state]")
    expect(lines.filter(has_text=re.compile(r"^step 5 loss"))).to_have_count(1, timeout=SOON)

    portal.kill("web")
    expect(state).to_have_text("Reconnecting", timeout=SOON)
    expect(state).to_have_text(re.compile("Live|Complete"), timeout=SOON)
    expect(state).to_have_text("Complete", timeout=FINALLY)
    assert lines.all_text_contents() == raw_log(bob.page)
    check_the_training(lines.all_text_contents(), preempted=False)

    # All matches in view are marked, and the address has the search.
    search = bob.page.get_by_label("Search in the log", exact=True)
    search.fill("STEP")
    search.press("Enter")
    marked = "CSS.highlights.get('log-match')?.size ?? 0"
    wait_for(lambda: bob.page.evaluate(marked) > 1, what="the matches are marked")
    expect(bob.page).to_have_url(re.compile(r"[?&]q=STEP(&|$)"))
    bob.page.reload()
    expect(search).to_have_value("STEP")
    wait_for(lambda: bob.page.evaluate(marked) > 1, what="the matches are marked again")
    # The page may have been refreshing one of its parts when the web server was killed.
    people.complaints[:] = [said for said in people.complaints if "Failed to fetch" not in said]


# Pages with content that scripts add or that only a running portal has. tests/portal/every_page/test_every_look.py
# opens all pages of the portal.
PAGES = {
    "bob": ("/", "/jobs/1/", "/jobs/2/log/", "/jobs/1/metrics/", "/jobs/1/files/", "/cluster/", "/share/"),
    "ada": ("/", "/admin/nodes/", "/admin/settings/", "/usage/capacity/", "/usage/operations/"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_small_and_large_screens_and_can_be_read(people: People, name: str) -> None:
    page = people.sign_in(name, has_touch=True).page
    wrong: dict[tuple[str, int, str], list[str]] = {}
    for path in PAGES[name]:
        answer = page.goto(path)
        assert answer, path
        assert answer.status == 200, path
        expect(page.get_by_role("heading").first).to_be_visible()
        for width in (380, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            # A page applies its new size before the next paint, so wait until a frame has been painted.
            page.evaluate(
                "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
            )
            for look in ("light", "dark"):
                page.emulate_media(color_scheme=look)
                found = [*what_is_too_wide(page), *tables_that_are_cut(page)]
                if width == 1280:
                    found += what_axe_says(page)
                if found:
                    wrong[path, width, look] = found
    assert wrong == {}


def test_what_a_form_is_told_stands_beside_its_button_and_has_the_focus(people: People) -> None:
    page = people.sign_in("ada").page
    page.goto("/admin/tenants/astro/budgets/")
    page.get_by_text("Set a budget per month").click()
    page.locator("#budget-month-amount").fill("much")
    page.get_by_role("button", name="Set budget per month").click()
    wrong = page.locator("#budget-month-amount")
    expect(wrong).to_be_focused()
    expect(wrong).to_be_in_viewport()
    expect(wrong).to_have_attribute("aria-describedby", "budget-month-amount_error")
    expect(page.locator("#budget-month-amount_error")).to_be_visible()

    # Two forms on this page replace the same element of the page.
    page.goto("/admin/tenants/astro/budgets/")
    page.get_by_text("Set a budget per quarter").click()
    page.locator("#budget-quarter-amount").fill("1000000")
    page.get_by_role("button", name="budget per quarter").click()
    answer = page.locator("form:has(#budget-quarter-amount) [data-message]")
    expect(answer).to_be_focused()
    expect(answer).to_be_in_viewport()
    expect(page.locator(".messages [data-message]")).to_have_count(0)
    people.complaints[:] = [said for said in people.complaints if "422" not in said]


def test_a_reload_sends_no_form_again(people: People) -> None:
    page = people.sign_in("bob").page
    page.goto("/account/tokens/")
    page.get_by_label("Name", exact=True).fill("nightly")
    page.get_by_role("button", name="Create token").click()
    tokens = page.get_by_role("rowheader", name="nightly")
    expect(tokens).to_have_count(1)
    page.reload()
    expect(tokens).to_have_count(1)


def test_the_keyboard_is_enough(people: People) -> None:
    page = people.sign_in("bob").page
    page.goto("/")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()

    page.keyboard.press("/")
    search = page.get_by_role("searchbox", name="Search jobs")
    expect(search).to_be_focused()
    page.keyboard.type("n?baseline")  # letters typed into a field are no shortcuts
    expect(search).to_have_value("n?baseline")
    search.fill("baseline")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/jobs/\?q=baseline$"))
    expect(page.get_by_role("row").filter(has_text="digits:")).to_have_count(1)

    page.keyboard.press("?")
    help_ = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(help_).to_be_visible()
    page.keyboard.press("Escape")
    expect(help_).to_be_hidden()
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="New job")).to_be_visible()


SCRIPT = b"""\
import os, pathlib
print("hello from", pathlib.Path.cwd().name, flush=True)
pathlib.Path("result.csv").write_text("step,loss\\n1,0.5\\n")
"""


def is_upload(route: Route) -> bool:
    return "multipart" in route.request.headers.get("content-type", "")


def test_a_user_brings_a_script_and_gets_its_result(people: People, tmp_path: Path) -> None:
    bob = people.sign_in("bob")
    bob.cancel_all()
    page = bob.page
    page.goto("/submit/")
    page.get_by_label("Name").fill("my script")
    page.get_by_label("Command", exact=True).fill("python hello.py")
    uploads: list[Route] = []
    page.route(
        "**/*from=form", lambda route: uploads.append(route) if is_upload(route) else route.continue_()
    )
    files, code = (
        page.get_by_label("Files, or one archive"),
        page.get_by_role("group", name="Code", exact=True),
    )
    files.set_input_files(
        {"name": "big.bin", "mimeType": "application/octet-stream", "buffer": bytes(9 << 20)}
    )
    expect(code.get_by_role("alert")).to_contain_text("these files are larger than 8.0\xa0MB")
    expect(files).to_have_value("")
    with page.expect_request(lambda request: "multipart" in request.headers.get("content-type", "")):
        files.set_input_files({"name": "hello.py", "mimeType": "text/x-python", "buffer": SCRIPT})
    # What is typed while the upload is under way neither stops it nor is lost.
    page.get_by_text("Python packages").click()
    page.get_by_label("Requirements").fill("humanize")
    yaml = page.get_by_role("textbox", name="YAML")
    expect(yaml).to_have_value(re.compile("humanize"))
    [upload] = uploads
    upload.continue_()
    expect(page.get_by_role("group", name="Code", exact=True)).to_contain_text("1 file")
    expect(page.get_by_label("Requirements")).to_have_value("humanize")
    expect(yaml).to_have_value(re.compile("sha256:.*humanize", re.DOTALL))
    page.get_by_label("Requirements").fill("")
    expect(yaml).not_to_have_value(re.compile("humanize"))
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("my script")
    expect(page.locator("#job-head")).to_contain_text("Succeeded", timeout=FINALLY)
    page.get_by_role("link", name="Files", exact=True).click()
    for name in ("work", "rank-0", "code"):
        page.get_by_role("main").get_by_role("link", name=f"{name}/", exact=True).click()
    page.get_by_role("main").get_by_role("link", name="result.csv", exact=True).click()
    expect(page.get_by_role("cell", name="0.5")).to_be_visible()
    page.get_by_role("link", name="Clone").click()
    expect(page.get_by_role("group", name="Code", exact=True)).to_contain_text("hello.py")


def test_the_preview_of_a_sweep_follows_all_parts_of_the_form(people: People) -> None:
    page = people.sign_in("bob").page
    page.goto("/sweeps/new/")
    page.get_by_label("Values", exact=True).fill("lr = 0.1, 0.2")
    page.get_by_label("Name").fill("rates")
    page.get_by_label("Command", exact=True).press_sequentially("echo {lr}")
    preview = page.locator("#sweep-preview")
    expect(preview).to_contain_text("echo 0.1")
    page.get_by_role("textbox", name="YAML").fill(
        'name: rates\nversion: 1\ncommand: "true {lr}"\ngpus_per_worker: 1\n'
    )
    expect(preview).to_contain_text("true 0.2")
    # The side that is edited last counts, also when the other side's edit is converted a moment later.
    page.evaluate(
        """async () => {
          const edit = (id, value) => {
            const field = document.getElementById(id);
            field.value = value;
            field.dispatchEvent(new Event("input", { bubbles: true }));
          };
          edit("command", "echo {lr}");
          await new Promise((done) => setTimeout(done, 300));
          edit("yaml", document.getElementById("yaml").value.replace("true", "false"));
        }"""
    )
    expect(preview).to_contain_text("false 0.2")


SBATCH = """\
#!/bin/bash
#SBATCH --job-name=from-slurm
#SBATCH --gres=gpu:1
#SBATCH --qos=high
echo hello
"""


def test_a_slurm_script_is_pasted_and_its_report_is_read_before_it_is_submitted(people: People) -> None:
    page = people.sign_in("bob").page
    page.goto("/submit/")
    page.get_by_role("textbox", name="YAML").fill(SBATCH)
    report = page.get_by_role("region", name="Import: Slurm batch script")
    expect(report).to_contain_text("qos", timeout=SOON)
    expect(page.get_by_label("Name")).to_have_value("from-slurm")
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("from-slurm")


def test_several_jobs_are_selected_and_cancelled_by_keyboard(people: People) -> None:
    bob = people.sign_in("bob")
    for name in ("sweep-a", "sweep-b"):
        bob.submit(name=name, command="sleep 60", gpus_per_worker=4)
    page = bob.page
    page.goto("/jobs/?q=sweep-&sort=name")
    for name in ("sweep-a", "sweep-b"):
        page.get_by_role("checkbox", name=f"Select {name}").press("Space")
    expect(page.get_by_text("2 selected:")).to_be_visible()
    # The list refreshes itself when a job changes. It keeps the selection.
    bob.submit(name="sweep-c", command="sleep 60", gpus_per_worker=4)
    expect(page.get_by_role("checkbox", name="Select sweep-c")).to_be_visible(timeout=SOON)
    expect(page.get_by_role("checkbox", checked=True)).to_have_count(2)
    page.get_by_role("button", name="Cancel", exact=True).press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel the selected jobs?")
    page.get_by_role("button", name="Cancel jobs").press("Enter")
    expect(page.get_by_text("2 jobs cancelled.")).to_be_visible()
    expect(page).to_have_url(re.compile(r"q=sweep-"))


def test_the_keyboard_is_enough_to_submit_follow_and_cancel(people: People) -> None:
    page = people.sign_in("bob").page
    page.goto("/")
    page.keyboard.press("n")
    type_into(page.get_by_label("Name"), "by keyboard")
    type_into(page.get_by_label("Command", exact=True), "echo started; exec sleep 600")
    press(page.get_by_role("button", name="Submit job"))
    expect(page.get_by_role("heading", level=1)).to_have_text("by keyboard")

    press(page.get_by_role("link", name="Log", exact=True))
    expect(log_lines(page).filter(has_text="started")).to_have_count(1, timeout=SOON)

    press(page.get_by_role("button", name="Cancel", exact=True))
    expect(page.get_by_role("button", name="Keep the job")).to_be_focused()
    press(page.get_by_role("button", name="Cancel this job"))
    expect(chip(page, "Cancelled")).to_be_visible(timeout=SOON)


def test_the_keyboard_is_enough_to_sweep(people: People) -> None:
    page = people.sign_in("bob").page
    page.goto("/sweeps/new/")
    type_into(page.get_by_label("Name"), "by keyboard")
    type_into(page.get_by_label("Command", exact=True), "echo {lr}")
    # Only the fields of the chosen kind are shown.
    kind, values = page.get_by_label("Kind"), page.get_by_label("Values")
    kind.focus()
    page.keyboard.press("A")
    expect(values).to_be_hidden()
    expect(page.get_by_label("Number of members")).to_be_visible()
    expect(page.get_by_label("Seed")).to_be_hidden()
    kind.select_option("grid")
    expect(page.get_by_label("Number of members")).to_be_hidden()
    type_into(values, "lr = 0.1, 0.01")
    press(page.get_by_role("button", name="Create sweep"))
    expect(page.get_by_role("heading", level=1)).to_have_text("by keyboard")
    expect(page.get_by_role("cell", name="0.01", exact=True)).to_be_visible()


def test_the_keyboard_is_enough_for_a_pipeline_which_is_drawn_while_it_is_typed(people: People) -> None:
    page = people.sign_in("bob").page
    page.goto("/pipelines/new/")
    graph = page.get_by_role("group", name="Graph")
    expect(graph.get_by_role("img", name="train: 1 GPU")).to_be_visible()
    steps = page.get_by_label("Steps", exact=True)
    steps.focus()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type(
        "name: typed\nsteps:\n  one: {command: python one.py}\n  two: {needs: [one], comand: x}\n"
    )
    expect(graph.get_by_role("img", name="two: to be corrected")).to_be_visible()
    expect(page.locator("#yaml-problems")).to_contain_text("steps.two.comand")
    expect(steps).to_have_attribute("aria-invalid", "true")
    for _ in range(len("comand: x}\n")):
        page.keyboard.press("Backspace")
    page.keyboard.type("command: python two.py}")
    expect(page.locator("#yaml-problems")).to_be_empty()
    expect(steps).to_be_focused()
    expect(steps).not_to_have_attribute("aria-invalid", "true")

    # What is typed while an upload is under way neither stops it nor is lost.
    page.get_by_label("For", exact=True).select_option("two")
    uploads: list[Route] = []
    page.route(
        "**/pipelines/preview/",
        lambda route: uploads.append(route) if is_upload(route) else route.continue_(),
    )
    with page.expect_request(lambda request: "multipart" in request.headers.get("content-type", "")):
        page.get_by_label("Files, or one archive").set_input_files(
            {"name": "two.py", "mimeType": "text/x-python", "buffer": b"print(2)"}
        )
    steps.focus()
    page.keyboard.press("ControlOrMeta+End")
    page.keyboard.type("\n  three: {needs: [two], command: echo}")
    [upload] = uploads
    upload.continue_()
    code = page.get_by_role("group", name="Code", exact=True)
    expect(code).to_contain_text("two.py")
    expect(graph.get_by_role("img", name="three: 1 GPU")).to_be_visible()
    assert what_axe_says(page) == []
    press(page.get_by_role("button", name="Create pipeline"))
    expect(page.get_by_role("heading", level=1)).to_have_text("typed")
    expect(page.locator("#pipeline-yaml")).to_contain_text(re.compile("two:.*sha256:", re.DOTALL))


def test_a_terminal_opens_when_its_job_starts_and_says_when_it_ends(people: People) -> None:
    bob = people.sign_in("bob")
    bob.cancel_all()
    page = bob.page
    job = bob.submit(name="to look into", command="exec sleep 600", checkpoint_grace_seconds=1)
    page.goto(f"/jobs/{job}/terminal/")
    state, screen = page.locator("[data-terminal-state]"), page.locator(".xterm-rows")
    expect(state).to_have_text("Connected", timeout=SOON)
    page.keyboard.type("echo $((6 * 7)).$FAIRLOT_JOB_ID")
    page.keyboard.press("Tab")  # for the shell
    page.keyboard.press("Enter")
    expect(screen).to_contain_text(f"42.{job}")
    page.keyboard.press("Control+Shift+Escape")
    expect(page.get_by_role("link", name="Terminal", exact=True)).to_be_focused()
    bob.post(f"jobs/{job}/cancel")
    expect(state).to_have_text(re.compile("Ended: the (job|shell) ended"), timeout=SOON)
    expect(page.get_by_role("heading", name="The job is not running")).to_be_visible(timeout=SOON)
    expect(screen).to_contain_text(f"42.{job}")
    expect(page.get_by_role("button", name="New terminal")).to_be_hidden()


# --- steps ---------------------------------------------------------------------------------------


def shorten_the_quantum(ada: Person) -> None:
    """Sets a quantum of 5 s so that jobs are preempted soon, and turns off trading."""
    page = ada.page
    page.get_by_role("navigation", name="Main", exact=True).get_by_role("link", name="Admin").click()
    page.get_by_role("link", name="Scheduling").click()
    page.get_by_label("Quantum, seconds").fill("5")
    page.get_by_label("Highest allowed switching overhead, %").fill("100")
    page.get_by_label(
        "Trade GPU time between GPU types"
    ).uncheck()  # otherwise the team Astro would buy so much GPU time that its job is not preempted
    page.get_by_role("button", name="Preview").first.click()
    expect(page.get_by_role("row", name=re.compile("^Quantum"))).to_contain_text("5 s")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-answers]")).to_contain_text("demo")
    expect(page.get_by_label("Quantum, seconds")).to_have_value("5")
    expect(page.get_by_label("Trade GPU time between GPU types")).not_to_be_checked()


def submit_the_digits(page: Page) -> int:
    """Submits the training program "digits" through the submit page, and returns the job's id. On the way, checks the
    hints and errors that the page shows."""
    page.get_by_role("link", name="New job").click()
    yaml, before = (
        page.get_by_role("textbox", name="YAML"),
        page.get_by_role("region", name="Before you submit"),
    )
    page.get_by_label("Name").fill("digits: my first")
    page.get_by_label("Command", exact=True).fill(DIGITS.format(steps=STEPS))
    page.get_by_label("Environment").select_option("python")
    page.get_by_label("V100").check()
    page.get_by_label("Checkpoint grace, in seconds").fill("10")
    page.get_by_text("Advanced").click()
    page.get_by_label("Priority").fill("50")
    # Without it, the job would be frozen instead of stopped, and would never say what it saved.
    page.get_by_label("Checkpoint pattern").fill("*.npz")
    expect(yaml).to_have_value(re.compile(r"^priority: 50$", re.MULTILINE))
    expect(yaml).to_have_value(re.compile(r"^name: .*digits: my first", re.MULTILINE))
    expect(yaml).to_have_value(re.compile("V100"))
    expect(before).to_contain_text(re.compile("can start now|will wait"))
    expect(before).to_contain_text("Cost on V100")
    expect(before).to_contain_text("1.20 EUR an hour")

    page.get_by_label("GPUs per worker").fill("5")
    expect(before).to_contain_text("can never run")
    page.get_by_label("Workers", exact=True).fill("none")
    expect(page.locator("#problem-workers")).to_contain_text("Must be a whole number from 1 to 4096")
    page.get_by_label("Workers", exact=True).fill("1")
    page.get_by_label("GPUs per worker").fill("1")
    expect(before).to_contain_text("1.20 EUR an hour")
    yaml.fill(yaml.input_value().replace("my first", "my very first"))
    expect(page.get_by_label("Name")).to_have_value("digits: my very first")

    page.get_by_role("button", name="Submit job").click()
    expect(page).to_have_url(re.compile(r"/jobs/\d+/$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("digits: my very first")
    return int(page.url.rstrip("/").rsplit("/", 1)[1])


def check_the_training(lines: list[str], *, steps: int = STEPS, preempted: bool = True) -> None:
    """Checks the log of the training: each step ran once and in order in spite of interruptions, and the accuracy is
    high."""
    made = [int(found[1]) for line in lines if (found := re.match(r"step (\d+) loss", line))]
    assert made == list(range(1, steps + 1))
    saved = [
        int(found[1]) for line in lines if (found := re.match(r"stopping as ordered; saved step (\d+)", line))
    ]
    resumed = [int(found[1]) for line in lines if (found := re.match(r"resuming .* of step (\d+)", line))]
    # A program that is stopped after its last step ends without the line "saved step"; its next attempt resumes from
    # the last step.
    assert saved == [step for step in resumed if step < steps]
    if preempted:
        assert saved
    accuracy = re.fullmatch(r"final accuracy (\d\.\d+)", lines[-1])
    assert accuracy, lines[-1]
    assert float(accuracy[1]) >= 0.95


def check_the_history(bob: Person, job: int) -> None:
    """Checks that the job's pages and events show at least one preemption and two starts."""
    page = bob.page
    page.get_by_role("link", name="Overview").click()
    turns = page.get_by_role("region", name="GPUs that the job held").get_by_role("row")
    kinds = [event["kind"] for event in bob.get(f"jobs/{job}/events")["items"]]
    expect(turns.filter(has_text="V100")).to_have_count(kinds.count("picked"))
    expect(turns.nth(1)).to_contain_text("succeeded")
    expect(page.locator(".tile", has_text="Progress")).to_contain_text(f"{STEPS} steps")
    assert kinds.count("preempted") >= 1
    assert kinds.count("started") >= 2
    assert kinds[-1] == "succeeded"


def check_the_bill(bob: Person, job: int) -> None:
    """Checks the GPU-seconds and the cost of the job.

    They must be the same in the API, on the usage page and in the CSV file, and must fit the job's duration.
    """
    page = bob.page
    row = next(row for row in bob.get("usage?by=job")["rows"] if row["job_id"] == job)
    gpu_seconds, cost = Decimal(row["gpu_seconds"]), Decimal(row["cost"])
    shown = bob.get(f"jobs/{job}")
    began, ended = (datetime.fromisoformat(shown[at]) for at in ("first_started_at", "ended_at"))
    # the job held its GPU shortly before its first start was recorded
    assert STEPS * 0.1 <= gpu_seconds < (ended - began).total_seconds() + 5
    turns = [event for event in bob.get(f"jobs/{job}/events")["items"] if event["kind"] == "picked"]
    rounding = Decimal("0.00005") * len(turns)  # each attempt is booked, and rounded, as one transaction
    assert abs(cost - gpu_seconds * Decimal("1.20") / 3600) <= rounding

    page.get_by_role("link", name="Usage").click()
    page.get_by_role("navigation", name="Group by").get_by_role("link", name="Job").click()
    on_page = page.get_by_role("row").filter(has=page.locator(f'a[href="/jobs/{job}/"]'))
    assert says(on_page.locator("[data-label=GPU-hours]"), gpu_seconds / 3600)
    assert says(on_page.locator("[data-label=Cost]"), cost)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    with Path(download.value.path()).open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["job_id"] == str(job)]
    assert [(Decimal(line["gpu_seconds"]), Decimal(line["cost"])) for line in lines] == [(gpu_seconds, cost)]


def check_that_others_see_nothing(charlie: Person, job: int) -> None:
    for part in ("", "log/", "log/raw", "log/stream", "events/", "spec/"):
        answer = charlie.page.goto(f"/jobs/{job}/{part}")
        assert answer
        assert answer.status == 404, part
        expect(charlie.page.get_by_text("digits: my very first")).to_have_count(0)
    assert charlie.context.request.get(f"/api/v1/jobs/{job}").status == 404


def take_the_picture(people: People) -> None:
    """Takes a screenshot of an operator's job list while teams compete for GPUs.

    Stores it in docs/ for the README if FAIRLOT_SCREENSHOT is 1, otherwise in artifacts/.
    """
    page = people.sign_in("olga").page
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("search", name="Filter jobs").get_by_label("State").select_option("Not ended")
    expect(page).to_have_url(re.compile(r"/jobs/\?(.*&)?state=active(&|$)"))
    expect(page.get_by_role("region", name="Jobs", exact=True)).to_contain_text("Running")
    expect(page.locator("[data-live-state]")).to_have_text("Live")
    page.locator("h1").click()  # removes the focus from the search form
    folder = ROOT / ("docs" if os.environ.get("FAIRLOT_SCREENSHOT") == "1" else "artifacts")
    folder.mkdir(exist_ok=True)
    page.screenshot(path=folder / "screenshot.png", animations="disabled")


def tab_to(wanted: Locator) -> None:
    """Presses Tab until the element has the focus, as somebody does who uses no mouse."""
    expect(wanted).to_have_count(1)
    for _ in range(200):
        wanted.page.keyboard.press("Tab")
        if wanted.evaluate("(element) => element === document.activeElement"):
            return
    raise AssertionError(f"Tab does not reach {wanted}")


def type_into(field: Locator, text: str) -> None:
    tab_to(field)
    field.page.keyboard.press("Control+a")
    field.page.keyboard.type(text)


def press(button: Locator) -> None:
    tab_to(button)
    button.page.keyboard.press("Enter")


# --- reading pages -------------------------------------------------------------------------------


def chip(page: Page, state: str) -> Locator:
    return page.locator("#job-head .chip").get_by_text(state, exact=True)


def log_lines(page: Page) -> Locator:
    return page.locator("[data-log-lines] > li")


def raw_log(page: Page) -> list[str]:
    with page.expect_download() as download:
        page.get_by_role("link", name="Raw").click()
    return Path(download.value.path()).read_text().splitlines()


def says(locator: Locator, value: Decimal) -> bool:
    """Returns whether the page's figure is greater than 0 and equals `value`, rounded to as many digits as the figure
    has."""
    figure = Decimal(locator.inner_text().split()[0])
    return figure == value.quantize(figure) > 0
