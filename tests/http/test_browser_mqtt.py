"""MQTT.js in Chromium: a page of the broker's own origin publishes and subscribes by WebSocket."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from wirelake.testing import Broker

LIBRARY = Path(__file__).parents[2] / "node_modules" / "mqtt" / "dist" / "mqtt.min.js"
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")

TALK = """
async ([url, version]) => {
  const client = mqtt.connect(url, { protocolVersion: version, reconnectPeriod: 0 });
  const got = [];
  return await new Promise((resolve, reject) => {
    client.on("error", reject);
    client.on("close", () => reject(new Error("closed")));
    client.on("message", (topic, payload, packet) => {
      got.push([topic, payload.toString(), packet.qos]);
      if (got.length === 3) { resolve(got); client.end(true); }
    });
    client.on("connect", async () => {
      await client.subscribeAsync("page/#", { qos: 2 });
      for (const qos of [0, 1, 2]) {
        await client.publishAsync(`page/${qos}`, `from a page, QoS ${qos}`, { qos });
      }
    });
  });
}
"""


@pytest.mark.parametrize("version", [4, 5], ids=["mqtt-3.1.1", "mqtt-5"])
def test_a_page_publishes_and_subscribes(version: int) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    missing = "no Chromium" if chromium is None else "" if LIBRARY.exists() else "no MQTT.js"
    if missing:
        if os.environ.get("CI"):
            pytest.fail(f"{missing}: CI must test MQTT in a browser (make setup)")
        pytest.skip(f"{missing}: MQTT is not tested in a browser (npm ci)")
    with Broker(http=True) as broker, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        # The broker's pages allow no script from elsewhere; this one stands in for a user's page.
        page = browser.new_context(bypass_csp=True).new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{broker.http_url}/docs")
        page.add_script_tag(path=LIBRARY)
        url = broker.http_url.replace("http", "ws", 1) + "/wire/mqtt"
        got = page.evaluate(TALK, [url, version])
        browser.close()
    assert got == [[f"page/{qos}", f"from a page, QoS {qos}", qos] for qos in (0, 1, 2)]
