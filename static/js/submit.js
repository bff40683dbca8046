// The submit page: a field is invalid exactly while its problem is shown, whoever changed the problem.

const form = document.getElementById("submit-form");

function mark() {
  for (const field of form.querySelectorAll("[aria-describedby]")) {
    const problem = field
      .getAttribute("aria-describedby")
      .split(/\s+/)
      .map((id) => document.getElementById(id))
      .find((element) => element?.matches(".field-error, #yaml-problems"));
    if (!problem) continue;
    if (problem.textContent.trim()) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
}

if (form) new MutationObserver(mark).observe(form, { childList: true, subtree: true, characterData: true });
