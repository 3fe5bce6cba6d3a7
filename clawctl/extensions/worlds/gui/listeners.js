(() => {
  const listens = new WeakSet(), add = EventTarget.prototype.addEventListener;
  Object.defineProperty(window, "__clawctl_listens", { value: listens });
  EventTarget.prototype.addEventListener = function (kind, ...rest) {
    if (["click", "mousedown", "mouseup", "pointerdown"].includes(kind) && this instanceof Element) listens.add(this);
    return add.call(this, kind, ...rest);
  };
})()
