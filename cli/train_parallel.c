/* How the processes of a run share out its work: --parallel, --stages and --interleave. */
#include <stdio.h>
#include <string.h>

#include "cli/common/exit.h"
#include "cli/train.h"

/* One "NAME=NUMBER" of the text, which goes on behind it. */
static bool take_pair(const char **text, char name[3], int *number)
{
    int length = 0, read = sscanf(*text, "%2[a-z]=%4d%n", name, number, &length);
    const char *end = *text + length;
    if (read != 2 || *number < 1 || (*end != ',' && *end) || (*end == ',' && !end[1]))
        return false;
    *text = end + (*end == ',');
    return true;
}

/* In the order of their names here; 0 where nothing is said of one. */
enum { COPIES, RING, STAGES, PARTS, EXPERTS, WAYS };

static int take_pairs(const train_given *given, int numbers[WAYS])
{
    static const char *const names[WAYS] = {"dp", "cp", "pp", "tp", "ep"};
    char name[3];
    for (const char *text = given->parallel; *text || text == given->parallel;) {
        int number, which = 0;
        bool good = take_pair(&text, name, &number);
        while (good && which < WAYS && strcmp(name, names[which]))
            which++;
        if (!good || which == WAYS || numbers[which])
            return cli_usage("--parallel takes dp=N, cp=R, pp=S, tp=M, ep=E or several of them "
                             "with commas between, not %s",
                             cli_shown(given->parallel));
        numbers[which] = number;
    }
    return CLI_OK;
}

/* Of all chunks, in the order of the model. */
static int take_stages(const train_given *given, train_parts *out)
{
    int64_t all = out->stages * out->chunks;
    int count = 0;
    for (const char *text = given->stages; text && *text; count++) {
        int length = 0, blocks = 0, read = sscanf(text, "%4d%n", &blocks, &length);
        const char *end = text + length;
        if (read != 1 || blocks < 1 || (*end && (*end != ',' || !end[1])) ||
            count == TRAIN_STAGES * TRAIN_CHUNKS)
            return cli_usage("--stages takes numbers of blocks with commas between, as 3,4,5, not "
                             "%s",
                             cli_shown(given->stages));
        out->blocks[count] = blocks;
        text = end + (*end == ',');
    }
    if (!given->stages || (count > 1 && count == all))
        return CLI_OK;
    if (out->chunks > 1)
        return cli_usage("--stages %s has %d numbers, and --parallel with --interleave %lld stages "
                         "of %lld chunks: give %lld",
                         cli_shown(given->stages), count, (long long)out->stages,
                         (long long)out->chunks, (long long)all);
    return cli_usage("--stages %s is of %d stages, and --parallel of %lld: give pp=%d there, or "
                     "change it",
                     cli_shown(given->stages), count, (long long)out->stages, count);
}

/* Experts of a stage are shared out among those who have it, parts of the model and of texts. */
static int check_experts(const train_given *given, const int numbers[WAYS], int64_t copies)
{
    int64_t experts = numbers[EXPERTS], ring = numbers[RING], parts = numbers[PARTS];
    int64_t all = copies * ring * parts, each = experts / parts;
    if (experts == 1)
        return CLI_OK;
    if (all % experts == 0 && experts % parts == 0 && (ring % each == 0 || each % ring == 0))
        return CLI_OK;
    if (parts > 1)
        return cli_usage("--parallel %s: ep=%lld shares out experts among dp times cp times tp "
                         "processes, of whose number it is a divisor, of tp a multiple, and ep by "
                         "tp of cp a divisor or a multiple; change it",
                         given->parallel, (long long)experts);
    return cli_usage("--parallel %s: ep=%lld shares out experts among dp times cp processes, of "
                     "whose number it is a divisor, and of cp a divisor or a multiple; change it",
                     given->parallel, (long long)experts);
}

int train_parallel(const train_given *given, int processes, train_parts *out)
{
    int numbers[WAYS] = {0};
    *out = (train_parts){.tensor = 1, .stages = 1, .chunks = 1, .ring = 1, .expert = 1};
    int code = given->parallel ? take_pairs(given, numbers) : CLI_OK;
    if (code)
        return code;
    for (int i = RING; i < WAYS; i++)
        numbers[i] += numbers[i] == 0;
    int64_t split = (int64_t)numbers[STAGES] * numbers[PARTS], each = split * numbers[RING];
    int64_t copies = numbers[COPIES] ? numbers[COPIES] : processes / each ? processes / each : 1;
    if (given->parallel && copies * each != processes)
        return cli_usage("--parallel %s is of %lld processes, and the run has %d: give --gpus or "
                         "--processes %lld, or change it",
                         given->parallel, (long long)(copies * each), processes,
                         (long long)(copies * each));
    code = check_experts(given, numbers, copies);
    if (code)
        return code;
    out->ring = numbers[RING];
    out->expert = numbers[EXPERTS];
    out->stages = numbers[STAGES];
    out->tensor = numbers[PARTS];
    if (out->stages > TRAIN_STAGES)
        return cli_usage("--parallel %s has %lld stages, and %d are the most", given->parallel,
                         (long long)out->stages, TRAIN_STAGES);
    out->chunks = given->interleave > 1 ? given->interleave : 1;
    if (out->chunks > 1 && out->stages == 1)
        return cli_usage("--interleave %lld is of the stages of a model: give --parallel pp=S, too",
                         (long long)out->chunks);
    if (given->sequence && out->tensor == 1)
        return cli_usage("--sequence-parallel shares out tokens among the processes of tp: give "
                         "--parallel tp=M, too");
    return take_stages(given, out);
}
