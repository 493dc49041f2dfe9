def pytest_addoption(parser):
    parser.addoption("--programs", default="build/dev", help="the build folder with cachalot and the plug-in")
