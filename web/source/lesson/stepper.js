// A picture that moves in steps: a list of the steps, and buttons that play them once or go through them.
import { announce, element } from "@drawing/dom.js";

const PACE = 1500; // milliseconds of a frame while it plays
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * Add the steps of a picture to its box, and return {update}.
 *
 * `update(steps)` takes [{caption, frames, show}]: `show(frame, frames)` draws a step, `caption(frame)` returns what it
 * says, as text or nodes. It keeps the current step; at first that is the last one, with the whole picture, or with its
 * frame `lastFrame` if that is given.
 * Playing starts at the first step and ends at the last. Visitors who prefer reduced motion step with the buttons.
 */
export function stepper(box, name) {
  let steps = [], at = null, timer = null; // `at` is {step, frame}
  const list = element("ol", { class: "steps", "aria-label": `Steps of the picture: ${name}` });
  const control = (text, label, onclick) => element("button", { type: "button", "aria-label": `${label}: ${name}`, onclick }, text);
  const play = control("▶ Play", "Play", () => (timer ? stop() : start()));
  const back = control("◀ Back", "Step back", () => { stop(); go(-1); });
  const next = control("Step ▶", "Step forward", () => { stop(); go(1); });
  const place = element("span", { class: "place", "aria-hidden": "true" });
  box.append(element("div", { class: "controls", role: "group", "aria-label": `Controls of the picture: ${name}` }, play, back, next, place), list);

  const isLast = () => at.step === steps.length - 1 && at.frame === steps[at.step].frames - 1;

  function move(by) {
    const { step, frame } = at;
    if (by > 0) at = isLast() ? { step: 0, frame: 0 } : frame + 1 < steps[step].frames ? { step, frame: frame + 1 } : { step: step + 1, frame: 0 };
    else if (step + frame === 0) at = last();
    else at = frame ? { step, frame: frame - 1 } : { step: step - 1, frame: steps[step - 1].frames - 1 };
  }

  const last = () => ({ step: steps.length - 1, frame: steps.at(-1).frames - 1 });

  function go(by) {
    move(by);
    draw();
    announce(list.children[at.step].textContent);
  }

  function start() {
    if (at.step === steps.length - 1) at = { step: 0, frame: 0 };
    timer = setInterval(() => {
      go(1);
      if (isLast()) stop();
    }, PACE);
    draw();
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    label();
  }

  function label() {
    const before = steps.slice(0, at.step).reduce((sum, { frames }) => sum + frames, 0), total = steps.reduce((sum, { frames }) => sum + frames, 0);
    place.textContent = `${before + at.frame + 1} of ${total}`;
    play.textContent = timer ? "❚❚ Pause" : "▶ Play";
    play.setAttribute("aria-label", `${timer ? "Pause" : "Play"}: ${name}`);
    play.hidden = calm.matches;
  }

  function draw() {
    const focused = [...list.children].findIndex((item) => item.contains(document.activeElement));
    list.replaceChildren(...steps.map(({ caption, frames }, step) => {
      const is = step === at.step, frame = is ? at.frame : step < at.step ? frames - 1 : 0;
      const jump = () => { stop(); at = { step, frame: 0 }; draw(); };
      const count = frames > 1 ? [element("small", {}, ` ${frame + 1} of ${frames}`)] : [];
      return element("li", {}, element("button", { type: "button", "data-number": step + 1, "aria-current": is ? "step" : undefined, onclick: jump }, element("span", {}, ...[caption(frame, frames)].flat(), ...count)));
    }));
    list.children[focused]?.firstChild.focus({ preventScroll: true });
    steps[at.step].show(at.frame, steps[at.step].frames);
    label();
  }

  calm.addEventListener("change", () => at && stop());
  return {
    update(given, lastFrame) {
      steps = given.map((step) => ({ frames: 1, ...step }));
      const isKept = at && at.step < steps.length - 1;
      at = isKept ? { step: at.step, frame: Math.min(at.frame, steps[at.step].frames - 1) } : last();
      if (!isKept && lastFrame !== undefined) at.frame = lastFrame;
      draw();
    },
  };
}
