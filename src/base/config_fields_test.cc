#include "base/config_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace moesaic {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Settings {
  std::string model;
  int32_t port = 30000;
  int64_t tokens = 0;
  float share = 0.5f;
  bool verbose = false;
  std::string mode = "fast";
  int32_t secret = 0;
};

class ConfigFieldsTest : public testing::Test {
 protected:
  ConfigFieldsTest() : fields("moesaic try", "Tries settings.") {
    fields.add("model-path", &settings.model).alias("model").alias("m").positional().doc("Directory of the model");
    fields.add("port", &settings.port).alias("p").range(0, 65535).doc("TCP port");
    fields.add("max-tokens", &settings.tokens)
        .alias("tp")
        .range(0, 1e12)
        .unit("tokens")
        .doc("Bound")
        .default_text("no bound");
    fields.add("share", &settings.share).range(0, 1).doc("A share");
    fields.add("verbose", &settings.verbose).alias("v").doc("Says more");
    fields.add("mode", &settings.mode).choices({"fast", "slow"}).doc("How");
    fields.add("secret-hook", &settings.secret).hidden();
  }

  ~ConfigFieldsTest() override {
    if (!path.empty()) std::filesystem::remove(path);
  }

  std::string error(const std::vector<std::string>& args) {
    const absl::Status status = fields.parse(args);
    EXPECT_EQ(status.ok() || status.code() == absl::StatusCode::kInvalidArgument ||
                  status.code() == absl::StatusCode::kNotFound,
              true);
    return std::string(status.message());
  }

  std::string file(const std::string& text) {
    path = testing::TempDir() + "config_fields_test_" + testing::UnitTest::GetInstance()->current_test_info()->name() +
           ".toml";
    std::ofstream(path) << text;
    return path;
  }

  Settings settings;
  ConfigFields fields;
  std::string path;
};

TEST_F(ConfigFieldsTest, ReadsEveryFormOfAFlag) {
  ASSERT_EQ(error({"--model=dir", "-p", "0", "-tp", "7", "--share", "0.25", "-v", "--mode", "slow"}), "");
  EXPECT_EQ(settings.model, "dir");
  EXPECT_EQ(settings.port, 0);
  EXPECT_EQ(settings.tokens, 7);
  EXPECT_EQ(settings.share, 0.25f);
  EXPECT_TRUE(settings.verbose);
  EXPECT_EQ(settings.mode, "slow");
  EXPECT_TRUE(fields.is_given("port"));
  EXPECT_FALSE(fields.is_given("secret-hook"));
}

TEST_F(ConfigFieldsTest, UnderscoresArePartOfNoName) {
  ASSERT_EQ(error({"--max_tokens=3"}), "");
  EXPECT_EQ(settings.tokens, 3);
}

TEST_F(ConfigFieldsTest, PositionalArgument) {
  ASSERT_EQ(error({"dir", "--port", "1"}), "");
  EXPECT_EQ(settings.model, "dir");
}

TEST_F(ConfigFieldsTest, BooleansTakeValuesAndNo) {
  ASSERT_EQ(error({"--verbose=false"}), "");
  EXPECT_FALSE(settings.verbose);
  settings.verbose = true;
  ConfigFields other("moesaic try", "x");
  other.add("verbose", &settings.verbose);
  EXPECT_TRUE(other.parse({"--no-verbose"}).ok());
  EXPECT_FALSE(settings.verbose);
}

TEST_F(ConfigFieldsTest, UnknownNamesGetASuggestion) {
  EXPECT_EQ(error({"--prot", "1"}), "unknown setting --prot; did you mean --port?");
  EXPECT_EQ(error({"--modle=x"}), "unknown setting --modle; did you mean --model?");
  EXPECT_EQ(error({"--qqqqqqqqq"}), "unknown setting --qqqqqqqqq; see moesaic try --help");
  EXPECT_THAT(error({"--secret-hok", "1"}), Not(HasSubstr("secret-hook")));
}

TEST_F(ConfigFieldsTest, ValuesAreChecked) {
  EXPECT_EQ(error({"--port", "65536"}), "--port expects an integer from 0 to 65535, found \"65536\"");
  EXPECT_EQ(settings.port, 30000);
}

TEST_F(ConfigFieldsTest, MalformedNumbers) {
  for (const char* text : {"", "x", "1x", "0x10", "1.5", " 1", "99999999999999999999"}) {
    ConfigFields fresh("t", "x");
    fresh.add("port", &settings.port);
    EXPECT_FALSE(fresh.parse({str_cat("--port=", text)}).ok()) << text;
  }
  for (const char* text : {"nan", "inf", "-0.1", "1.01", ""}) {
    ConfigFields fresh("t", "x");
    fresh.add("share", &settings.share).range(0, 1);
    EXPECT_FALSE(fresh.parse({str_cat("--share=", text)}).ok()) << text;
  }
}

TEST_F(ConfigFieldsTest, ChoicesAreNamed) {
  EXPECT_EQ(error({"--mode", "medium"}), "--mode expects one of fast, slow, found \"medium\"");
}

TEST_F(ConfigFieldsTest, MissingValues) {
  EXPECT_EQ(error({"--port"}), "--port needs a value: an integer from 0 to 65535");
  EXPECT_EQ(error({"--model", "--verbose"}), "--model needs a value: a text");
}

TEST_F(ConfigFieldsTest, NegativeNumbersAreValues) {
  EXPECT_EQ(error({"--port", "-1"}), "--port expects an integer from 0 to 65535, found \"-1\"");
}

TEST_F(ConfigFieldsTest, ASwitchTakesNoWordBehindIt) {
  ConfigFields fresh("t", "x");
  fresh.add("model-path", &settings.model).positional();
  fresh.add("verbose", &settings.verbose);
  EXPECT_THAT(std::string(fresh.parse({"a", "--verbose", "false"}).message()), HasSubstr("--name=false"));
}

TEST_F(ConfigFieldsTest, TwiceIsAnErrorAlsoByAlias) {
  EXPECT_THAT(error({"--port", "1", "-p", "2"}), HasSubstr("given twice"));
  ConfigFields fresh("t", "x");
  fresh.add("model-path", &settings.model).positional();
  EXPECT_THAT(std::string(fresh.parse({"a", "b"}).message()), HasSubstr("unexpected argument \"b\""));
}

TEST_F(ConfigFieldsTest, FileThenFlags) {
  ASSERT_EQ(error({"--config", file("port = 5\nmax_tokens = 6 # comment\nmode = \"slow\"\nshare = 1\n"), "-p", "9"}),
            "");
  EXPECT_EQ(settings.port, 9);
  EXPECT_EQ(settings.tokens, 6);
  EXPECT_EQ(settings.share, 1.0f);
  EXPECT_EQ(settings.mode, "slow");
  EXPECT_TRUE(fields.is_given("mode"));
}

TEST_F(ConfigFieldsTest, FileErrorsNameFileAndLine) {
  EXPECT_THAT(error({"--config", file("port = 5\nprot = 5\n")}),
              HasSubstr(".toml:2: unknown setting prot; did you mean --port?"));
  EXPECT_THAT(error({"--config", file("\nport = \"5\"\n")}),
              HasSubstr(".toml:2: port expects an integer from 0 to 65535, found 5 in quotes"));
}

TEST_F(ConfigFieldsTest, BrokenFilesAreErrors) {
  for (const char* text :
       {"port =", "port = 70000", "port = 1.5", "verbose = 1", "mode = true", "[table]\nport = 1", "port = [1]",
        "model = 3", "port = 1\nport = 2", "p = 1\nport = 2", "\xff\xfe = 1", "config = \"x\""}) {
    Settings fresh_settings;
    ConfigFields fresh("t", "x");
    fresh.add("port", &fresh_settings.port).alias("p").range(0, 65535);
    fresh.add("verbose", &fresh_settings.verbose);
    fresh.add("mode", &fresh_settings.mode);
    fresh.add("model", &fresh_settings.model);
    EXPECT_FALSE(fresh.parse({"--config", file(text)}).ok()) << text;
  }
  EXPECT_FALSE(fields.parse({"--config", testing::TempDir() + "no_such_file"}).ok());
}

TEST_F(ConfigFieldsTest, ListsTakeWhatComesBeforeTheNextFlag) {
  std::string bounds;
  fields.add("goodput", &bounds).list();
  ASSERT_TRUE(fields.parse({"--goodput", "ttft:200", "tpot:50", "--port", "80", "there"}).ok());
  EXPECT_EQ(bounds, "ttft:200 tpot:50");
  EXPECT_EQ(settings.port, 80);
  EXPECT_EQ(settings.model, "there");
}

TEST_F(ConfigFieldsTest, RequiredFields) {
  ConfigFields fresh("moesaic try", "x");
  fresh.add("model", &settings.model).required();
  const absl::Status status = fresh.parse({});
  EXPECT_EQ(status.message(), "--model is missing; moesaic try --help explains it");
}

TEST_F(ConfigFieldsTest, HelpAndDocsComeFromTheDeclaration) {
  ASSERT_EQ(error({"--prot", "--help"}), "");
  EXPECT_TRUE(fields.help_wanted());
  const std::string help = fields.help();
  EXPECT_THAT(help, HasSubstr("usage: moesaic try [model-path] [settings]"));
  EXPECT_THAT(help, HasSubstr("  --port, -p N\n        TCP port (from 0 to 65535; default: 30000)\n"));
  EXPECT_THAT(help, HasSubstr("default: no bound"));
  EXPECT_THAT(help, Not(HasSubstr("secret")));
  EXPECT_THAT(fields.markdown(), HasSubstr("| `--mode` | fast | fast \\| slow | How |\n"));
  EXPECT_THAT(fields.markdown(), Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace moesaic
