for (const button of document.querySelectorAll("button.copy")) {
  const text = button.nextElementSibling;
  const say = (word) => { button.textContent = word; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      say("Copied");
    } catch {
      getSelection().selectAllChildren(text); // where a page may not write to the clipboard: Ctrl-C does it then
      say("Selected");
    }
  });
}
addEventListener("beforeprint", () => { for (const folded of document.querySelectorAll("details")) folded.open = true; });
