#include "cli/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

/* What a run of 1000 quick steps writes into a file. */
static void write_run(char *out, size_t size)
{
    FILE *file = tmpfile();
    EXPECT(file);
    cli_progress p;
    progress_begin(&p, file, "tokens", 1000, 0);
    for (int i = 1; i <= 1000; i++)
        progress_step(&p, i, i * 64, i == 1 ? 4.5 : i % 10 ? NAN : 2.25);
    progress_note(&p, "validation loss %.2f", 2.5);
    progress_end(&p);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = 0;
    fclose(file);
}

TEST(progress_writes_few_plain_lines)
{
    char text[4096];
    write_run(text, sizeof text);
    int lines = 0;
    for (char *c = text; *c; c++)
        lines += *c == '\n';
    EXPECT(lines >= 3 && lines <= 5);
    EXPECT(!strchr(text, '\r') && !strchr(text, '\033'));
    EXPECT_CONTAINS(text, "step 1/1000  loss 4.5000");
    EXPECT_CONTAINS(text, "validation loss 2.50\n");
    EXPECT_CONTAINS(text, "step 1000/1000  loss 2.2500");
    EXPECT_CONTAINS(text, "tokens/s");
}

TEST(progress_numbers)
{
    char out[32];
    EXPECT_TEXT(progress_number(0, out), "0");
    EXPECT_TEXT(progress_number(999, out), "999");
    EXPECT_TEXT(progress_number(999.6, out), "1.00k");
    EXPECT_TEXT(progress_number(12345, out), "12.3k");
    EXPECT_TEXT(progress_number(2.5e6, out), "2.50M");
    EXPECT_TEXT(progress_number(9.996e6, out), "10.0M");
    EXPECT_TEXT(progress_time(0.4, out), "0:00");
    EXPECT_TEXT(progress_time(62, out), "1:02");
    EXPECT_TEXT(progress_time(3723, out), "1:02:03");
    EXPECT_TEXT(progress_time(NAN, out), "?");
    EXPECT_TEXT(progress_time(1e300, out), "?");
}

TEST(progress_without_steps)
{
    FILE *file = fopen("/dev/null", "w");
    cli_progress p;
    progress_begin(&p, file, NULL, 0, 0);
    progress_end(&p);
    progress_begin(&p, file, NULL, 10, 10);
    progress_step(&p, 10, 0, NAN);
    progress_end(&p);
    EXPECT_NEAR(progress_rate(&p), 0, 0);
    fclose(file);
}
