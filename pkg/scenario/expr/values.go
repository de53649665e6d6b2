package expr

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// omitName is the variable that makes Interpolate omit a value.
const omitName = "omit"

// Omit is the value of the omit variable.
type Omit struct{}

// omitVal is Omit in CEL; it is equal only to itself.
var omitVal ref.Val = omitted{}

var omitType = types.NewOpaqueType("omit")

type omitted struct{}

func (omitted) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("omit is not a %s", t)
}
func (omitted) ConvertToType(t ref.Type) ref.Val { return types.NewErr("omit is not a %s", t) }
func (omitted) Equal(other ref.Val) ref.Val      { _, is := other.(omitted); return types.Bool(is) }
func (omitted) Type() ref.Type                   { return omitType }
func (omitted) Value() any                       { return Omit{} }

// native converts a CEL value to a JSON value in Go. It removes omitted values from lists and maps.
func native(v ref.Val) (any, error) {
	switch v := v.(type) {
	case omitted:
		return Omit{}, nil
	case types.Null, nil:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.Int:
		return int64(v), nil
	case types.Uint:
		if v > math.MaxInt64 {
			return nil, fmt.Errorf("%d is too large", uint64(v))
		}
		return int64(v), nil
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, fmt.Errorf("unsupported number %v", float64(v))
		}
		return float64(v), nil
	case types.String:
		return string(v), nil
	case types.Bytes:
		return string(v), nil
	case types.Timestamp:
		return v.Format(time.RFC3339Nano), nil
	case types.Duration:
		return v.Duration.String(), nil
	case *types.Optional:
		if !v.HasValue() {
			return Omit{}, nil // absent optional values
		}
		return native(v.GetValue())
	case traits.Mapper:
		return nativeMap(v)
	case traits.Lister:
		return nativeList(v)
	}
	return nil, fmt.Errorf("unsupported type %s as the result of an expression", v.Type().TypeName())
}

func nativeList(v traits.Lister) (any, error) {
	out := []any{}
	for it := v.Iterator(); it.HasNext() == types.True; {
		item, err := native(it.Next())
		if err != nil {
			return nil, err
		}
		if !isOmit(item) {
			out = append(out, item)
		}
	}
	return out, nil
}

func nativeMap(v traits.Mapper) (any, error) {
	out := map[string]any{}
	for it := v.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, is := key.(types.String)
		if !is {
			return nil, fmt.Errorf("map key %v is not a string", key.Value())
		}
		item, err := native(v.Get(key))
		if err != nil {
			return nil, err
		}
		if !isOmit(item) {
			out[string(name)] = item
		}
	}
	return out, nil
}

func isOmit(v any) bool { _, is := v.(Omit); return is }

// show formats a value for messages: as JSON, shortened.
func show(v any) string {
	if isOmit(v) {
		return omitName
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(text) > 80 {
		return string(text[:77]) + "..."
	}
	return string(text)
}
