#!/usr/bin/python3
"""Opens a page in headless Chromium, over its debugging pipe, and goes through steps.

usage: browser.py URL STEP...
  size=390x844        of the window, from here on         dark | light    the preferred colours
  wait=EXPRESSION     until it is true, 40 s at most      print=EXPRESSION
  go=HASH             the page's fragment                 shot=FILE.png   of the whole page
Exit code: 0 done, 1 a step failed or the page has logged an error (allow=TEXT lets errors with this text pass), and says what."""
import base64, json, os, select, shutil, subprocess, sys, tempfile, time

PATIENCE_S = 40


class Browser:
    def __init__(self, folder):
        to_read, self.write = os.pipe()
        self.read, to_write = os.pipe()

        def descriptors():   # the pipe is 3 and 4 in the browser
            os.dup2(to_read, 100), os.dup2(to_write, 101)   # one of them may be 3 or 4 already
            os.dup2(100, 3), os.dup2(101, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", "--remote-debugging-pipe", "--user-data-dir=" + folder, "about:blank"],
            preexec_fn=descriptors, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": folder}, start_new_session=True)
        os.close(to_read), os.close(to_write)
        self.buffer, self.number, self.session, self.errors = b"", 0, None, []

    def message(self, until):
        while b"\0" not in self.buffer:
            if not select.select([self.read], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self.read, 1 << 16)
            if not more:
                raise EOFError("the browser has ended")
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.write, json.dumps(request).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self.message(until)
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            elif answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.errors.append(answer["params"]["entry"]["text"])
            elif answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(method + ": " + answer["error"]["message"])
                return answer["result"]

    def open(self, url):
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(expression + ": " + result["exceptionDetails"]["exception"].get("description", "failed"))
        return result["result"].get("value")

    def wait(self, expression):
        until = time.monotonic() + PATIENCE_S
        while not self.value("!!(" + expression + ")"):
            if time.monotonic() > until:
                raise TimeoutError("not within %d s: %s\n%s" % (PATIENCE_S, expression, self.value("document.body.innerText")))
            time.sleep(0.05)

    def shot(self, path):
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        self.call("Runtime.evaluate", expression=frames, awaitPromise=True)
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                            clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def step(self, name, value):
        if name == "size":
            width, height = map(int, value.split("x"))
            self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700)
        elif name in ("dark", "light"):
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
        elif name == "wait":
            self.wait(value)
        elif name == "print":
            result = self.value(value)
            print(result if isinstance(result, str) else json.dumps(result))
        elif name == "go":
            self.value("location.hash = " + json.dumps(value))
        elif name == "shot":
            self.shot(value)
        else:
            raise RuntimeError("no such step: " + name)


def main(url, steps):
    folder, browser, allowed = tempfile.mkdtemp(prefix="gc-browser-"), None, []
    try:
        browser = Browser(folder)
        browser.open(url)
        for each in steps:
            name, _, value = each.partition("=")
            if name == "allow":
                allowed.append(value)
            else:
                browser.step(name, value)
        wrong = [error for error in browser.errors if not any(text in error for text in allowed)]
        for error in wrong:
            print("the page says: " + error, file=sys.stderr)
        return 1 if wrong else 0
    except (RuntimeError, TimeoutError, EOFError, OSError) as error:
        print("browser.py: %s" % error, file=sys.stderr)
        return 1
    finally:
        if browser:
            os.killpg(browser.process.pid, 9)
            browser.process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
