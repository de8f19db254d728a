"""The report page in a real browser: curves are there, switches work, nothing is fetched and nothing complained of."""

import pytest
import torch

from tests.conftest import LAPTOP, PHONE, screen
from tests.results import save, write

selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install .[test]")
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

EVIL = "</script><img src=x onerror=document.title='broken'>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three runs: one smooth, one that diverged, one whose name would break out of the data; and a folder cut short."""
    folder = tmp_path_factory.mktemp("page")
    smooth = [[4.0 / (1 + i), 5.0 / (1 + i)] for i in range(20)]
    accuracy = {"accuracy": lambda i: 0.5 + 0.02 * i}
    ending = {
        "iterations": 30,
        "stopped": "diverged",
        "diverged": {str(t): {"agent": 2, "iteration": 25} for t in (0, 1)},
    }
    folders = [
        save(folder / "a", "Smooth", losses=smooth, more=accuracy),
        save(folder / "b", EVIL, losses=[[2 * value for value in values] for values in smooth]),
        save(
            folder / "c", "Wild", losses=[[1.0, 2.0], [1e9, 2e9], [1e30, 2e30]], x=torch.zeros(2, 4, 1), ending=ending
        ),
        save(folder / "d", "Lost"),
    ]
    (folders[3] / "records.jsonl").write_text('{"trial": 0,')
    return write(folder / "report.html", folders, "Some runs")


@pytest.fixture
def show(browser, page):
    """Opens the page on a screen of some size, in light or dark; afterwards looks for complaints and requests."""

    def show(size=LAPTOP, scheme="light"):
        screen(browser, size, scheme)
        browser.get(page.as_uri())
        WebDriverWait(browser, 20).until(lambda _: all_of(browser, ".chart .plot > svg"))
        return browser

    yield show
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert not browser.execute_script(
        "return /NaN|Infinity|undefined|\\[object|>null</.test(document.querySelector('main').innerHTML)"
    )


def test_no_other_script_runs_on_the_page(browser, page):
    """Whatever gets into the page by an oversight of ours, its content security policy stops it."""
    evil = "<script>document.title = 'broken'</script><p onclick=\"document.title = 'broken'\" id=evil>x</p>"
    changed = page.with_name("changed.html")
    changed.write_text(page.read_text(encoding="utf-8").replace("</main>", f"</main>{evil}"), encoding="utf-8")
    browser.get(changed.as_uri())
    WebDriverWait(browser, 20).until(lambda _: all_of(browser, ".chart .plot > svg"))
    browser.execute_script("document.getElementById('evil').click()")
    assert browser.title == "Some runs · proxdasa report"
    assert sum("Content Security Policy" in entry["message"] for entry in browser.get_log("browser")) == 2


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString", "x') url(a"])
def test_measures_and_settings_may_have_any_name(browser, tmp_path, name):
    folder = save(tmp_path / "a", "A", more={name: lambda i: 1.0 + i}, **{name: {"a": 1}})
    browser.get(write(tmp_path / "report.html", [folder, save(tmp_path / "b", "B")]).as_uri())
    WebDriverWait(browser, 20).until(lambda _: len(all_of(browser, ".chart .plot > svg")) == 3)
    assert [len(chart.find_elements(By.CSS_SELECTOR, "g.run")) for chart in all_of(browser, ".chart")] == [2, 2, 1]
    assert one(browser, "#footer").text
    assert browser.get_log("browser") == []


def test_what_is_at_the_runs_own_gamma_is_not_sorted(browser, tmp_path):
    def folder(name, gamma, value):
        more = {"stationarity": lambda _: value, "table_stationarity": lambda _: value}
        return save(tmp_path / name, name, more=more, facts={"gamma": gamma})

    folders = [folder("A", 1.0, 0.1), folder("B", 2.0, 0.2)]
    browser.get(write(tmp_path / "report.html", folders).as_uri())
    WebDriverWait(browser, 20).until(lambda _: len(all_of(browser, ".chart .plot > svg")) == 4)
    told = {}
    for measure in ("stationarity", "table_stationarity"):
        one(browser, f"[data-measure={measure}] .plot > svg").send_keys(Keys.HOME)
        spoken = one(browser, "#spoken").get_attribute("textContent").partition(": ")[2]
        told[measure] = [part.split()[0] for part in spoken.split("; ")]
    assert told == {"stationarity": ["A", "B"], "table_stationarity": ["B", "A"]}
    card = one(browser, "[data-measure=stationarity]").text
    assert "stationarity at own γ" in card
    assert "not ranked" in card


def all_of(browser, selector):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def one(browser, selector):
    (found,) = all_of(browser, selector)
    return found


def curves(browser, measure):
    """The paths of a chart by the run they belong to."""
    groups = all_of(browser, f"[data-measure={measure}] g.run")
    return {
        group.get_attribute("data-run"): group.find_element(By.TAG_NAME, "path").get_attribute("d") for group in groups
    }


def ticks(browser, measure):
    return [text.text for text in all_of(browser, f"[data-measure={measure}] .plot > svg text")]


def height_of(browser, measure, run, point):
    """How high a point of a curve stands, in pixels from the top."""
    return float(curves(browser, measure)[run].lstrip("M").split("L")[point].split()[1])


def test_everything_is_on_the_page(show):
    browser = show()
    assert browser.title == "Some runs · proxdasa report"
    assert [chart.get_attribute("data-measure") for chart in all_of(browser, ".chart")] == [
        "loss",
        "consensus",
        "accuracy",
    ]
    assert set(curves(browser, "loss")) == {"Smooth", EVIL, "Wild"}
    assert curves(browser, "loss")["Smooth"].count("L") == 19
    assert set(curves(browser, "accuracy")) == {"Smooth"}
    assert len(all_of(browser, "[data-measure=loss] .band")) == 3
    assert [row.text.split()[0] for row in all_of(browser, "#table tbody tr")] == [
        EVIL.partition(" ")[0],
        "Smooth",
        "Wild",
    ]
    plan = one(browser, "#plan").text
    assert "2 of 2 trials diverged" in plan
    assert "the last line is cut short" in plan
    assert "1 run did not go as planned" in one(browser, "[role=note]").text
    assert "gamma\n0.1" in one(browser, "#configuration").text
    assert len(all_of(browser, ".agent")) == len(all_of(browser, ".edge")) == 4


def test_what_diverged_does_not_hide_the_rest(show):
    browser = show()
    plot = one(browser, "[data-measure=loss] .plot").size["height"]
    assert height_of(browser, "loss", "Smooth", -1) - height_of(browser, "loss", "Smooth", 0) > plot / 3
    assert height_of(browser, "loss", "Wild", -1) < 0


def test_switches(show):
    browser = show()
    before, log_ticks = curves(browser, "loss"), ticks(browser, "loss")
    one(browser, ".legend [data-run=Smooth]").click()
    assert set(curves(browser, "loss")) == {EVIL, "Wild"}
    assert one(browser, ".legend [data-run=Smooth]").get_attribute("aria-pressed") == "false"
    nothing, everything = (
        next(b for b in all_of(browser, ".legend button") if b.text == word) for word in ("none", "all")
    )
    nothing.click()
    assert curves(browser, "loss") == {}
    everything.click()
    assert curves(browser, "loss") == before
    scale = one(browser, "[data-measure=loss] header button:first-of-type")
    assert scale.text == "log"
    scale.click()
    assert (scale.text, scale.get_attribute("aria-pressed")) == ("linear", "false")
    assert ticks(browser, "loss") != log_ticks
    assert curves(browser, "loss") != before
    scale.click()
    Select(one(browser, "#axis")).select_by_value("seconds")
    assert ticks(browser, "loss")[-1] == "simulation of all trials (s)"
    one(browser, "#log-x").click()
    assert curves(browser, "loss")["Smooth"].count("L") == 18  # no logarithm of 0
    narrow = one(browser, "[data-measure=loss] .plot > svg").size["width"]
    one(browser, "[data-measure=loss] header button:last-of-type").click()
    # The page draws the chart anew while it grows, so the one that was found may be gone when its size is asked for.
    WebDriverWait(browser, 20, ignored_exceptions=[StaleElementReferenceException]).until(
        lambda _: one(browser, "[data-measure=loss] .plot > svg").size["width"] > 2 * narrow
    )


def test_values_are_told_to_the_mouse_and_to_the_keyboard(show):
    browser = show()
    plot = one(browser, "[data-measure=loss] .plot > svg")
    ActionChains(browser).move_to_element(plot).perform()
    tip = one(browser, "[data-measure=loss] .tip").text
    assert tip.startswith("iteration k: 80\nWild (at 20) 1.5·10³⁰ ± ")
    assert tip.endswith("\nSmooth 0.5 ± 0.71")
    plot.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    spoken = one(browser, "#spoken").get_attribute("textContent")
    assert "iteration k 10: " in spoken
    assert "Smooth 2.25 ± 3.2" in spoken
    plot.send_keys(Keys.ESCAPE)
    assert not all_of(browser, "[data-measure=loss] .tip")
    ActionChains(browser).move_to_element(one(browser, "[data-agent='3']")).perform()
    assert one(browser, "#network .tip").text == "agent 3\n2 neighbours\n‖x − x̄‖² = 2.25"
    assert len(all_of(browser, ".edge.near")) == 2
    one(browser, "svg.graph").send_keys(Keys.ARROW_RIGHT)
    assert "agent 0, 2 neighbours" in one(browser, "#spoken").get_attribute("textContent")
    assert "Mean over agents: 0\n" not in one(browser, "#network").text + "\n"
    Select(one(browser, "#network-run")).select_by_visible_text("Wild")
    assert "Mean over agents: 0\n" in one(browser, "#network").text + "\n"


def tap(browser, element):
    """A finger on the middle of an element, lifted again."""
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    box = browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", element)
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [place]})
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_what_a_tap_shows_stays_until_something_else_is_tapped(show):
    browser = show(PHONE)
    tap(browser, one(browser, "[data-measure=loss] .plot > svg"))
    wait = WebDriverWait(browser, 20, ignored_exceptions=[StaleElementReferenceException])
    wait.until(lambda _: any("Smooth 0.5 ± 0.71" in tip.text for tip in all_of(browser, "[data-measure=loss] .tip")))
    tap(browser, one(browser, "[data-measure=consensus] .plot > svg"))
    wait.until(lambda _: all_of(browser, "[data-measure=consensus] .tip"))
    assert not all_of(browser, "[data-measure=loss] .tip")
    browser.execute_script("scrollBy(0, 200)")
    wait.until(lambda _: not all_of(browser, ".chart .tip"))
    tap(browser, one(browser, "[data-agent='3']"))
    wait.until(lambda _: any(tip.text.startswith("agent 3") for tip in all_of(browser, "#network .tip")))


def test_what_is_nought_throughout_does_not_keep_the_rest_from_a_log_scale(browser, tmp_path):
    """On a complete graph agents never disagree."""
    folders = [
        save(tmp_path / name, name, more={"z_consensus": [1.0, each].__getitem__})
        for name, each in (("A", 0.1), ("B", 0.2))
    ]
    nought = save(tmp_path / "C", "C", more={"z_consensus": lambda _: 0.0})
    ending = {
        "iterations": 5,
        "stopped": "diverged",
        "diverged": {str(i): {"agent": 0, "iteration": 5} for i in (0, 1)},
    }
    lost = save(tmp_path / "D", "D", [[4.0, 6.0]], more={"z_consensus": lambda _: 0.0}, ending=ending)
    begun = save(tmp_path / "E", "E", [[4.0, 6.0]], more={"z_consensus": lambda _: 0.0})
    browser.get(write(tmp_path / "report.html", [*folders, nought, lost, begun]).as_uri())
    WebDriverWait(browser, 20).until(lambda _: all_of(browser, "[data-measure=z_consensus] g.run"))
    assert set(curves(browser, "z_consensus")) == {"A", "B"}
    card = one(browser, "[data-measure=z_consensus]")
    assert "0 throughout in 1 run" in card.text.splitlines()[1], "those that diverged or have only begun are not"
    card.find_element(By.CSS_SELECTOR, "header button").click()
    assert set(curves(browser, "z_consensus")) >= {"A", "B", "C"}, "on a linear scale it is there"
    assert browser.get_log("browser") == []


CUT = """return [...document.querySelectorAll(".legend button, .legend b, td.text")].filter(
  e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflow !== "visible").length"""
"""How many names do not fit where they are."""


def test_twelve_runs_of_three_methods_stay_readable(browser, tmp_path):
    """Colour is the method, dashes tell its runs apart; a method is named once, and no name is cut off."""
    folders = [
        save(tmp_path / f"{title}{i}", title, algorithm={"name": title, "gamma": gamma})
        for title in ("Prox-DASA", "Prox-DASA-GT", "DEEPSTORM v1-SVRG")
        for i, gamma in enumerate((0.1, 0.15000000000000002, 0.2, 0.4))
    ]
    uri = write(tmp_path / "report.html", folders).as_uri()
    for size in (LAPTOP, PHONE):
        screen(browser, size, "light")
        browser.get(uri)
        WebDriverWait(browser, 20).until(lambda _: len(all_of(browser, "[data-measure=loss] g.run")) == 12)
        curves = all_of(browser, "[data-measure=loss] g.run path")
        looks = [(curve.get_attribute("stroke"), curve.get_attribute("stroke-dasharray")) for curve in curves]
        assert len(set(looks)) == 12
        assert len({colour for colour, _ in looks}) == 3
        buttons = [button.text for button in all_of(browser, ".legend [data-run]")]
        assert buttons == ["gamma = 0.1", "gamma = 0.15", "gamma = 0.2", "gamma = 0.4"] * 3
        assert [name.text for name in all_of(browser, ".legend b")] == [
            "DEEPSTORM v1-SVRG",
            "Prox-DASA",
            "Prox-DASA-GT",
        ]
        assert browser.execute_script(CUT) == 0
        assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("size", [LAPTOP, PHONE])
def test_it_fits_the_screen_in_light_and_dark(show, size):
    grounds = []
    for scheme in ("light", "dark"):
        browser = show(size, scheme)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
        assert browser.execute_script("return document.documentElement.clientWidth") > size[0] - 20
        ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        one(browser, "#theme").click()
        other = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        grounds.append((ground, other))
    (light, dark), (also_dark, also_light) = grounds
    assert (light, dark) == (also_light, also_dark)
    assert light != dark
