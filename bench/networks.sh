#!/bin/sh
# What networks for images reach on a card, in some three minutes, a part after the other whatever
# fails: usage: bench/networks.sh BUILD FASHION [decoded] [unet] [accuracy]
#   decoded    images/s of ResNet-50 on the device's own images, on an array in the host's memory,
#              and on JPEGs that are decoded, scaled and moved for each batch
#   unet       the convolutions of a U-Net beside cuDNN's, through PyTorch
#   accuracy   ResNet-18 on FASHION, the folder of Fashion-MNIST, at 32x32, beside PyTorch's
# It wants BUILD/cupola, BUILD/libcupola.so and BUILD/bench/images_steps; PyTorch but for the first
# part, and for that TurboJPEG, which CUP_LIBTURBOJPEG may name.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -ge 2 ] || {
    sed -n '2,9s/^# //p' "$0"
    exit 2
}
build=$1
fashion=$2
shift 2
device=${DEVICE:-cuda}
steps=${STEPS:-80}
logs=$build/networks
rm -rf "$logs"
mkdir -p "$logs/array" "$logs/jpegs"
failed=0

# part SECONDS COMMAND...: what may take that long.
part() {
    from=$(date +%s)
    timeout -k 5 "$@"
    code=$?
    [ "$code" = 0 ] || failed=1
    shift
    echo "   $(($(date +%s) - from)) s, exit code $code: $*"
}

decoded() {
    part 40 "$build/bench/images_steps" "$device" resnet50 256 "$steps"
    part 40 "$build/bench/images_steps" "$device" resnet50 256 "$steps" "$logs/array"
    part 60 "$build/bench/images_steps" "$device" resnet50 256 "$steps" "$logs/jpegs" 256
}

unet() {
    part 90 python3 bench/peers.py --lib "$build/libcupola.so" --part unet --no-error \
        --seconds 0.02 --records "$logs/unet.tsv"
    awk -F'\t' '$10 > 0 {
            sum[$3] += log($10); n[$3]++
            if (!($3 in least) || $10 < least[$3]) least[$3] = $10
        }
        END {
            for (op in n)
                printf "%s: %d layers, %.3f of the speed of cuDNN in the mean, %.3f at least\n",
                    op, n[op], exp(sum[op] / n[op]), least[op]
        }' "$logs/unet.tsv"
}

accuracy() {
    part 120 python3 bench/fashion_peer.py accuracy "$fashion" --side 32 --out "$logs/accuracy" \
        --command "$build/cupola" --lib "$build/libcupola.so" --device "$device"
}

[ $# -gt 0 ] || set -- decoded unet accuracy
for name; do
    case $name in
    decoded | unet | accuracy) echo "== $name" && "$name" ;;
    *) echo "networks.sh: there are decoded, unet and accuracy, not $name" && failed=1 ;;
    esac
done
exit $failed
