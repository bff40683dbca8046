// Starts Swagger UI: with the theme of the portal, and a filter that finds operations by subject, address and summary.
const settings = JSON.parse(document.getElementById("swagger-settings").textContent);
const { csrfToken } = document.body.dataset;
const { theme } = document.documentElement.dataset;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function showTheme() {
  const isDark = theme === "dark" || (theme === "system" && prefersDark.matches);
  document.documentElement.classList.toggle("dark-mode", isDark);
}

function matches(phrase, tag, operation) {
  if (phrase === "true") return true; // the box is empty
  const texts = [tag, operation.get("path"), operation.get("method"), operation.getIn(["operation", "summary"], "")];
  const text = texts.join(" ").toLowerCase();
  return phrase.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function opsFilter(tagged, phrase) {
  return tagged
    .map((group, tag) =>
      group.set("operations", group.get("operations").filter((operation) => matches(phrase, tag, operation))),
    )
    .filter((group) => group.get("operations").size > 0);
}

// Unfolds the subjects in which the filter finds something.
function isShown(original) {
  return (state, thing, usual) => {
    const filter = state.get("filter");
    const isFiltered = typeof filter === "string" && !["", "true", "false"].includes(filter);
    return (isFiltered && [].concat(thing)[0] === "operations-tag") || original(thing, usual); // already bound to the state
  };
}

showTheme();
prefersDark.addEventListener("change", showTheme);
window.ui = SwaggerUIBundle({
  ...settings,
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  plugins: [{ fn: { opsFilter }, statePlugins: { layout: { wrapSelectors: { isShown } } } }],
  onComplete() {
    const box = document.querySelector(".operation-filter-input");
    box.placeholder = "Filter by address, summary or subject";
    box.setAttribute("aria-label", box.placeholder);
  },
  requestInterceptor(request) {
    if (csrfToken) request.headers["X-CSRFToken"] = csrfToken;
    return request;
  },
});
